"""``dump`` and ``load``: a queue moves to another Redis; nothing is lost or doubled."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import subprocess

import pytest
import redis

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.store.listings import Listing
from tests.bound import Queries
from tests.cli import proj
from tests.cli.conftest import done, end_all, start

FAR = 9_000_000_000.0
#: Payloads that are no JSON, or not as we write it.
HOSTILE = [
    b"",
    b"\xff\x00",
    b"1.0",
    b"1e5",
    b'{"b":1, "a":2}',
    b'{"a":1,"a":2}',
    b'"\\ud800"',
    b"NaN",
    b"[" * 5000,
    b'"\xd0\xb7"',
    b"\x01application/json\0utf-8\0[2]",
    b"x" * 100_000,
    b'{"n":' + b"9" * 5000 + b"}",
]


def contents(queue):
    """All that a move must keep, by place and id."""
    store, spec = context_of(proj.app).store, queue.spec
    queries = Queries(store.client)
    waiting = {
        job.id: (job.perform_in, job.retry_count, job.error, sorted(job.payloads), job.payload_count)
        for job in queries.jobs(spec, Listing(limit=1000, payload_limit=1000)).items
    }
    dead = {
        job.id: (job.updated_at, job.error, sorted(job.payloads), job.payload_count)
        for job in queries.morgue(spec, Listing(limit=1000, payload_limit=1000)).items
    }
    return {"waiting": waiting, "dead": dead}


#: Of a content type that the app does not accept.
UNREAD = b"\x01application/x-python-serialize\0binary\0N."


@pytest.fixture
def filled(queue):
    """All kinds of jobs and payloads."""
    store, spec = context_of(proj.app).store, queue.spec
    dead = [Call("unread", UNREAD, 1.0), *(Call(f"d{n}", b"%d" % n, n) for n in range(20))]
    store.push(spec, dead)
    end_all(proj.sync_order, Disposition.BURY, b"not \xff UTF-8")
    store.push(spec, [Call(f"f{n}", b'{"a":1}', n) for n in range(20)])
    end_all(proj.sync_order, Disposition.RETRY, "ValueError: \u00e4\n\x00".encode(), retry_count=3)
    store.push(spec, [Call(f"w{n}", b"%d" % n, 1e300 / (n + 1), FAR + n) for n in range(20)])
    store.push(spec, [Call("hostile", data, 1.0, FAR) for data in HOSTILE])
    store.push(spec, [Call("long", b"%d" % n, float(n % 7), FAR) for n in range(5000)])
    return queue


def empty(server):
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.flushall()


def test_a_queue_comes_out_as_it_went_in(filled, run, server):
    before = contents(filled)
    dumped = run("dump", "sync_order")
    assert dumped.exit_code == 0, dumped.output
    assert contents(filled) == before
    empty(server)
    loaded = run("load", "sync_order", stdin=dumped.stdout_bytes)
    lines = len(dumped.stdout_bytes.splitlines()) - 2
    assert loaded.output == f"loaded {lines} of {lines} lines into queue sync_order\n"
    assert contents(filled) == before
    order = [payload.value for payload in filled.job("long", payload_limit=1000).waiting.payloads]
    assert order == sorted(range(5000), key=lambda n: n % 7)[:1000]


@pytest.mark.parametrize("stored", [2, 7])
def test_all_comes_out_of_a_queue_that_is_stored_with_other_shards_than_declared(queue, run, server, stored):
    store = context_of(proj.app).store
    spec = dataclasses.replace(queue.spec, shards=stored)
    store.push(spec, [Call(f"d{n}", b"%d" % n, n) for n in range(20)])
    end_all(proj.sync_order, Disposition.BURY, spec=spec)
    store.push(spec, [Call(f"w{n}", b"%d" % n, n, FAR) for n in range(20)])
    dumped = run("dump", "sync_order")
    assert (dumped.exit_code, dumped.stderr) == (0, "dumped 40 lines of jobs of queue sync_order\n")
    assert json.loads(dumped.stdout_bytes.splitlines()[0])["shards"] == stored
    empty(server)
    assert run("load", "sync_order", stdin=dumped.stdout_bytes).exit_code == 0
    assert {f"w{n}" for n in range(20)} == contents(queue)["waiting"].keys()
    assert {f"d{n}" for n in range(20)} == contents(queue)["dead"].keys()


def test_loading_it_once_more_changes_nothing(filled, run, server):
    dumped = run("dump", "sync_order").stdout_bytes
    before = contents(filled)
    for options in ((), ("--again",)):
        assert run("load", "sync_order", *options, stdin=dumped).exit_code == 0
        assert contents(filled) == before
    assert run("load", "sync_order", stdin=dumped).output.startswith("loaded 0 of ")


def test_what_ran_after_half_a_load_does_not_come_back_with_the_other_half(filled, run, server):
    """Workers need not be stopped where it is loaded."""
    dumped = run("dump", "sync_order").stdout_bytes.splitlines(keepends=True)
    empty(server)
    half = run("load", "sync_order", stdin=b"".join(dumped[: len(dumped) // 2]))
    assert (half.exit_code, "the dump is not complete" in half.stderr) == (1, True)
    filled.run_now_all()
    ran = end_all(proj.sync_order, Disposition.DONE)
    assert ran > 10
    assert run("load", "sync_order", stdin=b"".join(dumped)).exit_code == 0
    filled.run_now_all()
    again = end_all(proj.sync_order, Disposition.DONE)
    assert ran + again == 42 + 4  # "long" comes in parts of 1,000 payloads


@pytest.mark.full
def test_a_load_that_is_killed_again_and_again_ends_with_all_of_it(filled, server):
    dumped = done("dump", "sync_order").stdout.encode()
    before = contents(filled)
    empty(server)
    lines = dumped.splitlines(keepends=True)
    for part in (1, 30, 60):
        process = start("load", "sync_order", stdin=subprocess.PIPE)
        process.stdin.write(b"".join(lines[:part]))
        process.stdin.flush()
        process.kill()
        process.communicate()
    found = done("load", "sync_order", stdin=dumped)
    assert (found.returncode, found.stderr) == (0, "")
    assert contents(filled) == before


def test_a_redis_that_goes_away_meanwhile_is_no_loss(filled, server, monkeypatch):
    """Of the scripts of each round trip, the first gets through."""
    dumped = b"".join(filled.dump())
    before = contents(filled)
    empty(server)
    store = context_of(proj.app).store
    run_registered, breaks = store.run_registered, iter(range(6))

    def break_off(spec, calls):
        if next(breaks, None) is None:
            return run_registered(spec, calls)
        run_registered(spec, calls[:1])
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "run_registered", break_off)
    for _ in range(6):
        with pytest.raises(StoreUnavailable):
            filled.load(io.BytesIO(dumped))
    filled.load(io.BytesIO(dumped))
    assert contents(filled) == before


def test_what_is_processed_is_told(queue, run):
    proj.sync_order.delay("runs", 1)
    claim_one(queue.spec)
    found = run("dump", "sync_order")
    assert "1 job in processing: wait, or they run again after the load" in found.stderr
    assert json.loads(found.stdout.splitlines()[1])["state"] == "processing"


def claim_one(spec):
    """As a worker does."""
    store = context_of(proj.app).store
    for shard in spec.shard_refs():
        lease = store.acquire(spec, shard, "busy@here", store.observe([shard])[0], 0)
        if store.claim(spec, lease, 1).jobs:
            return


def changed(lines, place, **fields):
    return [*lines[:place], json.dumps({**json.loads(lines[place]), **fields}).encode(), *lines[place + 1 :]]


def with_payload(lines, data, **fields):
    return changed(lines, 1, payloads=[{"score": 1, "base64": base64.b64encode(data).decode()}], **fields)


def with_record(lines, data):
    return changed(lines, 1, state="calls", calls=[["00" * 10, base64.b64encode(data).decode()]])


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda lines: [], "there is no header"),
        (lambda lines: lines[1:], "there is no header"),
        (lambda lines: [b"hello", *lines], "line 1: it is not a line of a dump"),
        (lambda lines: [*lines[:3], lines[3][:20]], "line 4: it is not a line of a dump"),
        (lambda lines: lines[:-1], "the dump is not complete: after 3 lines of jobs comes nothing"),
        (lambda lines: [*lines[:2], *lines[3:]], "the dump is not complete: after 2 lines"),
        (lambda lines: [*lines, *lines], "the dump is not complete"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 3: its number 1 is not above 2"),
        (lambda lines: changed(lines, 0, format="celery-lowkiq dump 9"), "this version reads"),
        (lambda lines: changed(lines, 0, queue="other"), "the dump is of queue 'other'"),
        (lambda lines: changed(lines, 0, serializer="pickle"), "this app cannot read its payloads"),
        (lambda lines: changed(lines, 0, dump="{x}"), "line 1: it is not a line of a dump"),
        (
            lambda lines: changed(lines, 1, id="a\nb"),
            "line 2: id='a\\nb' is invalid: expected text without a control",
        ),
        (lambda lines: changed(lines, 1, when="soon"), "line 2: it is not a line of a dump"),
        (lambda lines: changed(lines, 1, retry_count=1.5), "line 2: it is not a line of a dump"),
        (lambda lines: changed(lines, 1, payloads=[{"score": 1e999, "value": 1}]), "line 2"),
        (lambda lines: changed(lines, 1, payloads=[{"score": 1, "value": "x" * 2**20}]), "is larger than"),
        # S1: what no worker would run, was loaded.
        (
            lambda lines: with_payload(lines, UNREAD),
            "line 2: content type 'application/x-python-serialize' is",
        ),
        (lambda lines: with_payload(lines, UNREAD, state="processing"), "is not in accept_content"),
        (
            lambda lines: with_record(lines, UNREAD),
            "line 2: content type 'application/x-python-serialize' is",
        ),
        (lambda lines: with_record(lines, b'{"a":1}'), "line 2: no record of a call"),
        (lambda lines: with_record(lines, b'["a",[]]'), "line 2: no record of a call: its headers"),
    ],
)
def test_a_file_that_is_no_dump_is_refused_with_its_line(queue, run, spoil, said):
    proj.sync_order.perform_async([{"id": n, "payload": n} for n in range(3)])
    lines = list(queue.dump())
    found = run("load", "sync_order", stdin=b"\n".join(line.strip() for line in spoil(lines)))
    assert (found.exit_code, said in found.stderr) == (1, True), found.stderr
    assert found.stderr.count("\n") == 1


def test_a_dump_of_another_queue_may_be_taken(queue, run):
    proj.sync_order.perform_async([{"id": n, "payload": n} for n in range(3)])
    dumped = run("dump", "sync_order").stdout_bytes
    assert run("load", "send_mail", "--renamed", stdin=dumped).exit_code == 0
    assert proj.send_mail.ordered_queue.stats().length == 3
