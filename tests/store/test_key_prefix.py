"""A prefix of all keys and channels: stores with different ones share nothing. Also on a cluster."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.rules.models import Disposition
from celery_lowkiq.store.acl import rules
from celery_lowkiq.store.actions import DEAD, write_entry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.trackers import TrackerStore
from tests.bound import Actions
from tests.store.helpers import ONE, claim, contents, dead, end, push, take

PREFIXES = ("", "stage:", "prod:")


@pytest.fixture
def stores(client):
    """Of three installations on one Redis."""
    return {prefix: RedisStore(client, prefix=prefix) for prefix in PREFIXES}


def test_no_store_sees_the_jobs_of_another(stores):
    for prefix, store in stores.items():
        push(store, "1", (f'"{prefix}"', 1))
    for prefix, store in stores.items():
        lease = take(store, owner=prefix or "plain")
        claimed = claim(store, lease)
        assert contents(claimed) == {"1": [(f'"{prefix}"', 1.0)]}
        end(store, lease, claimed, Disposition.DIE, error=b"wrong")
    assert Actions(stores["stage:"].client).delete_dead(ONE, DEAD) == 1
    assert [dead(store, "1") for store in stores.values()] == [[('""', 1.0)], None, [('"prod:"', 1.0)]]


def test_announcements_come_to_their_own_store(stores):
    with stores["stage:"].subscribe([ONE]) as stage, stores["prod:"].subscribe([ONE]) as prod:
        push(stores["prod:"], "1", ('"x"', 1))
        found = prod.wait_pushed(5)
        assert found is not None
        assert found[0].queue == ONE.name
        # A message to this one would have been published before.
        push(stores["stage:"], "2", ('"y"', 1), perform_in=time.time() + 500)
        _, due = stage.wait_pushed(5)
        assert due > time.time() + 400


def test_all_keys_have_it(client, stores):
    """Those of shards, and those without a hash tag, which a cluster stores by their whole names."""
    stage = stores["stage:"]
    push(stage, "1", ('"x"', 1))
    take(stage)
    stage.beat([ONE.name], "node", 2, 1)
    assert stage.take("ticket", "a") == "a"
    assert stage.take("ticket", "b") == "a"
    write_entry(stage.client, b"{}")
    trackers = TrackerStore(stage.client)
    opened = trackers.open("import", 60)
    assert [tracker.id for tracker in trackers.recent(10, None).items] == [opened]
    found = [key.decode() for key in client.scan_iter()]
    assert len(found) > 8
    assert all(key.startswith("stage:lowkiq:") for key in found)


def test_without_one_they_are_as_ever(client, stores):
    push(stores[""], "1", ('"x"', 1))
    wanted = {
        b"lowkiq:queue:{orders}",
        *(b"lowkiq:1:{orders:0}:" + name for name in (b"jobs", b"due", b"meta")),
    }
    assert wanted <= set(client.keys())


def test_rules_of_a_role_have_it_as_it_is():
    words = rules("worker", ["orders"], prefix="[a]*:")
    named = [word for word in words if word[0] in "~&"]
    assert named
    assert all(word[1:].startswith(r"\[a\]\*:lowkiq:") for word in named)
