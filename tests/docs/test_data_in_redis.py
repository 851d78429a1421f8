"""docs/data-in-redis.md has each key of the store, with its type and an example."""

from __future__ import annotations

import re

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.store.keys import KEY_TYPES, SHARD_KEYS, TRACKER_KEYS
from tests.docs.redis_keys import PAGE, RENAMED, collected, wanted

TEXT = PAGE.read_text()
#: Beside those of shards and trackers. `ticket` and `trackers` are read by no script.
OTHERS = {"queue": "hash", "nodes": "hash", "tokens": "hash", "report": "hash", "reports": "zset"}
OTHERS |= {"failures": "hash", "failure_ranks": "zset"}
OTHERS |= {"history": "hash", "ticket": "hash", "trackers": "zset"}
KEYS = {RENAMED.get(name, name): type_ for name, type_ in (SHARD_KEYS | TRACKER_KEYS | OTHERS).items()}
TYPES = {"hash": "hash", "sorted set": "zset"}


def test_the_page_has_each_key_with_its_type():
    headings = re.findall(r"^### `(\w+)` \(([a-z ]+)\)$", TEXT, re.MULTILINE)
    assert {name: TYPES[type_] for name, type_ in headings} == KEYS
    assert {name: KEY_TYPES[name] for name in OTHERS.keys() & KEY_TYPES.keys()}.items() <= OTHERS.items()


@pytest.mark.parametrize("name", KEYS)
def test_the_page_has_an_example_of_each_key(name):
    section = TEXT.partition(f"### `{name}` (")[2].partition("\n##")[0]
    (example,) = re.findall(r"```text\n(.+?)```", section, re.DOTALL)
    key, *entries = example.splitlines()
    assert key.startswith("lowkiq:")
    assert entries
    assert all(" -> " in entry or entry.endswith(" entries") for entry in entries)


@pytest.mark.full
def test_the_examples_are_found_on_a_server(root_level):
    with EmbeddedServer() as server:
        found = collected(server, wanted())
    assert {name: TYPES[example.type] for name, example in found.items()} == KEYS
