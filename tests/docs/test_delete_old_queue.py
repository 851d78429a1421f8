"""The commands of docs/operations.md that delete a queue which has moved, run by a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Pausing

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SECTION = PAGE.partition("### Delete the old queue\n")[2]
DATABASE = 3
#: In place of redis-cli, which need not be installed: it prints what redis-cli prints without a terminal.
REDIS_CLI = f"""#!{sys.executable}
import os, sys
import redis

host, old, option, database, *command = sys.argv[1:]
assert (host, old, option) == ("-h", "old", "-n"), sys.argv
with redis.Redis(unix_socket_path=os.environ["SOCKET"], db=int(database), decode_responses=True) as client:
    if command[:2] == ["--scan", "--pattern"]:
        for key in client.scan_iter(*command[2:]):
            print(key)
    else:
        try:
            print(client.execute_command(*command))
        except redis.ResponseError as error:
            print("ERR", error)
"""


@pytest.fixture
def shell(empty_redis, tmp_path):
    """Runs lines in a folder of its own, on database ``database``; returns what they print."""
    stub = tmp_path / "redis-cli"
    stub.write_text(REDIS_CLI)
    stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def run(lines: str, database: int = DATABASE) -> str:
        lines = lines.replace("-n 0 ", f"-n {database} ")
        environment = os.environ | {"PATH": path, "SOCKET": str(empty_redis.socket_path)}
        done = subprocess.run(
            ["sh", "-c", lines], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout

    return run


@pytest.fixture
def store(empty_redis):
    with redis.Redis(unix_socket_path=empty_redis.socket_path, db=DATABASE) as client:
        yield RedisStore(client)


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


def keys(store: RedisStore) -> set[str]:
    return {key.decode() for key in store.client.servers.redis.keys("*")}


def test_they_delete_all_keys_of_the_queue_and_no_other(shell, store):
    for name in ("proj.sync_order", "proj.sync_orders", "other.sync_order"):
        queue = QueueSpec(name, shards=12)
        store.push(queue, [Call(str(number), b"x") for number in range(60)])
        Pausing(store.client).switch_ids(queue, ["1"], paused=True)
    before = keys(store)
    own = {key for key in before if "{proj.sync_order}" in key or "{proj.sync_order:" in key}
    assert "lowkiq:queue:{proj.sync_order}" in own

    look, delete = blocks()
    assert int(shell(look).split()[0]) == len(own)
    assert keys(store) == before
    assert sum(map(int, shell(delete).split())) == len(own)
    assert keys(store) == before - own


def test_it_shows_that_nothing_has_matched(shell, store):
    store.push(QueueSpec("proj.sync_order", shards=2), [Call("1", b"x")])
    look, _ = blocks()
    assert shell(look, database=DATABASE + 1).split()[0] == "0"
    assert int(shell(look).split()[0]) > 0
