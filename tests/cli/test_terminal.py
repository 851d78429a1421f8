"""No text in Redis, whoever wrote it, controls the terminal of a command, or forges a line of its output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis

from celery_lowkiq import cli, track
from celery_lowkiq.cli.main import lowkiq
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.rules.models import Disposition
from tests.cli import proj
from tests.cli.conftest import end_all

#: Stands in all texts, and is replaced in Redis by texts of the same length, raw and as JSON writes them.
MARK = b"Mxxxxx"
HOSTILE = {
    "escape": b"\x1b[2K\r.",
    "lines": b"\nFORGE",
    "C1": "\x9b2K\x85".encode(),
    "bidi": "\u202e\u2028".encode(),
    "in JSON": b"\\u001b",
    "line in JSON": b"\\u000a",
}
#: Commands that start something, or change what others read. A dump is a file, whose bytes count.
OTHERS = {
    "acl",
    "dev",
    "dump",
    "flower",
    "load",
    "metrics",
    "push",
    "quiet",
    "repair",
    "reshard",
    "unquiet",
} | {"web"}
LISTINGS = ("jobs", "morgue", "failures", "held", "paused")
OF_ID = ("job", "why", "run-now", "hold", "go-on --yes", "requeue", "sign")
COMMANDS = [
    *(f"{name} sync_order" for name in (*LISTINGS, "stats", "pause")),
    *(f"{name} sync_order --json" for name in LISTINGS),
    *(f"{name} sync_order {{id}}" for name in OF_ID),
    *(f"job sync_order {job_id}" for job_id in ("running", "dead", "failed")),
    *("stats", "stats --shards", "nodes", "masters", "doctor", "audit", "audit --json"),
    *("failures", "progress"),
    "progress {tracker}",
    "progress {tracker} --state enqueued",
    "job sync_order running --json",
    "resume sync_order",
    "bury sync_order failed --yes",
    "delete sync_order failed --morgue --yes",
    "cancel {tracker} --yes",
]


def test_all_commands_are_tried():
    assert {line.split()[0] for line in COMMANDS} | OTHERS == set(lowkiq.list_commands(None))


def test_commands_write_by_one_function():
    uses = {
        str(path.relative_to(Path(cli.__file__).parent))
        for path in Path(cli.__file__).parent.rglob("*.py")
        if re.search(r"\b(click\.s?echo|print|std(out|err)\.write)\(", path.read_text())
    }
    assert uses == {"output.py"}


@pytest.fixture
def marked(queue):
    """Leave the mark in jobs of all places, an owner, a tracker, and the audit log. Returns the tracker."""
    mark, store = MARK.decode(), context_of(proj.app).store
    call = proj.sync_order.apply_async
    call(("dead", {"text": mark}))
    end_all(proj.sync_order, Disposition.BURY, b"ValueError: " + MARK)
    call(("failed", mark))
    end_all(proj.sync_order, Disposition.RETRY, b"ValueError: " + MARK, retry_count=1)
    call(("running", mark))
    shard = queue.spec.shard_of("running")
    lease = store.acquire(queue.spec, shard, f"{mark}@here", store.observe([shard])[0], 0)
    assert store.claim(queue.spec, lease, 1).jobs
    with track(mark, app=proj.app) as tracker:
        call((f"id-{mark}", {mark: mark}), countdown=1000, tracker=tracker)
    queue.pause(job_id=f"id-{mark}")
    Audit(proj.app).write(
        Change(mark, mark, mark, "sync_order", (mark,), None, mark, {mark: mark}, mark), mark
    )
    return tracker.id


def poison(client, hostile):
    """Replace the mark in all that Redis has, also behind our code."""
    for key in client.scan_iter("lowkiq:*"):
        kind = client.type(key)
        if kind == b"hash":
            for field, value in client.hgetall(key).items():
                client.hdel(key, field)
                client.hset(key, field.replace(MARK, hostile), value.replace(MARK, hostile))
        elif kind == b"zset":
            for member, score in client.zrange(key, 0, -1, withscores=True):
                client.zrem(key, member)
                client.zadd(key, {member.replace(MARK, hostile): score})
        elif kind == b"set":
            for member in client.smembers(key):
                client.srem(key, member)
                client.sadd(key, member.replace(MARK, hostile))
        elif kind == b"stream":
            entries = client.xrange(key)
            client.delete(key)
            for name, fields in entries:
                client.xadd(
                    key, {field: value.replace(MARK, hostile) for field, value in fields.items()}, name
                )
        elif kind == b"string":
            client.set(key, client.get(key).replace(MARK, hostile), keepttl=True)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_command_lets_a_text_through(server, marked, run, hostile):
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        poison(client, HOSTILE[hostile])
    seen = ""
    for line in COMMANDS:
        words = line.format(id="running", tracker=marked).split()
        output = run(*words).output
        assert all(part.isprintable() for part in output.split("\n")), (line, output)
        assert not re.search("^FORGE", output, re.MULTILINE), (line, output)
        seen += output
    assert "here" in seen
