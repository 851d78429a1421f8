"""What a lane and its child process send each other arrives as it was."""

from __future__ import annotations

import os
import signal
import socket
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.utils.collections import LimitedSet
from celery.worker import state

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.processes import child_runs, protocol
from celery_lowkiq.integration.processes.child import Child, ChildOptions, Orders
from celery_lowkiq.integration.processes.child_handle import ChildHandle
from celery_lowkiq.integration.processes.protocol import Channel
from celery_lowkiq.integration.request import new_id
from celery_lowkiq.rules.models import (
    Batch,
    ClaimedCallRecords,
    Disposition,
    Job,
    Lease,
    Payload,
    QueueSpec,
    Recorded,
    Settlement,
    ShardRef,
    StoredRecord,
)
from celery_lowkiq.rules.policies import Isolation

QUEUE = QueueSpec("q", shards=3)
PLAIN = Job("1", (Payload(b"x", 1.5),), perform_in=2.0, claim=7, payload_count=1)
JSON = PLAIN._replace(payloads=(Payload(b"1", 1.5),))
FULL = Job(
    "2",
    (Payload(b"a", 1.0, Recorded.ALL), Payload(b"b", 2.0, Recorded.SOME, 99)),
    perform_in=3.25,
    retry_count=4,
    error=b"boom",
    claim=7,
    payload_count=2,
    last_call=9,
    calls=ClaimedCallRecords((StoredRecord(b"k", 0, b"record"),), complete=True),
    unwanted=1,
    early=True,
    paused=True,
    priority=3,
    isolation=Isolation(2, 8),
)


def batch(*jobs: Job) -> Batch:
    lost = threading.Event()
    return Batch(QUEUE, Lease(ShardRef("q", 2), "me", 5, "server"), 7, jobs, lost, 1.0, 2.0, "run")


def test_a_batch_arrives_as_it_was():
    sent = batch(PLAIN, FULL)
    data = protocol.run_message(sent, 3, ("task",), ["revoked"], {"stamp": ["1"]})
    message = protocol.RunMessage._make(protocol.read(data))
    received = protocol.read_batch(message, QUEUE, threading.Event())
    assert received == sent
    assert (received.began_at, received.claimed_at, received.run_id) == (1.0, 2.0, "run")
    assert (message.number, message.events, message.revoked) == (3, ("task",), ["revoked"])
    assert not message.is_lost


@pytest.mark.parametrize(
    "settlements, dead",
    [
        ([Settlement("1", 7, Disposition.DONE)], []),
        ([Settlement("1", 7, Disposition.DONE, ended=((b"k", b"k"),))], []),
        ([Settlement("1", 7, Disposition.DIE, 4, error=b"boom", isolation=Isolation(1, 2))], ["dead"]),
    ],
)
def test_an_outcome_arrives_as_it_was(settlements, dead):
    sent = protocol.outcome(3, settlements, dead, is_spent=True)
    received = protocol.OutcomeMessage._make(protocol.read(protocol.write(sent)))
    assert protocol.read_settlements(received, batch(PLAIN)) == (tuple(settlements), dead)
    assert (received.number, received.is_spent) == (3, True)


def test_a_held_result_ends_its_call():
    held = protocol.OutcomeMessage(protocol.OUTCOME, 3, False, held=(b"key", "value", b"record"))
    ((settlement,), dead) = protocol.read_settlements(held, batch(PLAIN))
    assert (settlement.disposition, settlement.ended, dead) == (
        Disposition.DONE,
        ((b"record", b"record"),),
        [],
    )


def test_a_child_hears_of_each_revoked_call_once(monkeypatch):
    """Celery 5.7 keeps them in another form than Celery 5.6."""
    monkeypatch.setattr(state, "revoked", revoked := LimitedSet(maxlen=10))
    process = SimpleNamespace(revoked=None)
    assert list(child_runs._revoked_since(process)) == []
    for new in ("ab", "c", ""):
        for task_id in new:
            revoked.add(task_id)
        assert sorted(child_runs._revoked_since(process)) == list(new)


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    yield Channel(one, 0.05), Channel(other, 20)
    one.close()
    other.close()


class Connected(ChildHandle):
    """The lane's end of a channel to this process, which is the child."""

    def __init__(self, channel):
        self._work, self.runs = channel, 2


@pytest.mark.parametrize("kind", [protocol.OUTCOME, protocol.FAILED])
def test_an_outcome_of_another_run_is_skipped(ends, kind):
    """It must not settle the jobs of the run that the lane waits for."""
    child, lane = ends
    for number in (1, 2, 3):
        child.send(protocol.write((kind, number, "rest")))
    child.send(protocol.write((protocol.EVENT, 1)))
    process = Connected(lane)
    assert [process.receive() for _ in range(4)] == [None, (kind, 2, "rest"), None, (protocol.EVENT, 1)]


@pytest.mark.parametrize("sizes", [[0], [1, 2, 3], [65_536], [3_000_000, 1]])
def test_messages_arrive_whole_and_in_order(ends, sizes):
    one, other = ends
    sent = [bytes([n]) * size for n, size in enumerate(sizes)]
    sender = threading.Thread(target=lambda: [one.send(message) for message in sent])
    sender.start()
    assert [other.receive() for _ in sizes] == sent
    sender.join(20)


def test_a_channel_waits_as_long_as_it_is_told(ends):
    one, other = ends
    assert one.is_silent()
    assert one.receive() is None
    other.send(b"x")
    assert not one.is_silent()
    assert one.receive() == b"x"
    other.close()
    assert not one.is_silent()
    with pytest.raises(EOFError):
        one.receive()


def test_forks_of_one_process_make_different_ids(tmp_path):
    """Also of the fork server, which has the state of the generator from its start."""
    pids = []
    for number in range(2):
        pid = os.fork()
        if pid == 0:
            (tmp_path / str(number)).write_text(new_id())
            os.kill(os.getpid(), signal.SIGKILL)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert (tmp_path / "0").read_text() != (tmp_path / "1").read_text()


@pytest.fixture
def child(ends):
    app = Celery("child", broker="redis://localhost:1/0", set_as_current=False)

    @ordered_task(app=app, shared=False, name="q")
    def function(payloads_by_id): ...

    app.finalize()
    task = app.tasks["q"]
    task.__trace__ = build_tracer("q", task, app.loader, "host", app=app)
    before = signal.getsignal(signal.SIGUSR1)
    made = Child(app, ends[0], Orders(), ChildOptions("proj:app", (), "host", None, None, None))
    yield made
    made.close()
    signal.signal(signal.SIGUSR1, before)


def test_receivers_of_task_received_get_the_runs_of_a_child(child, ends, caplog):
    """The sender stood in for Celery's consumer, and could not be hashed."""
    received = []
    receiver = partial(lambda into, request, **_: into.append(request.id), received)
    signals.task_received.connect(receiver, weak=False)
    try:
        message = protocol.run_message(batch(JSON), 1, None, (), {})
        child._run(protocol.RunMessage._make(protocol.read(message)))
    finally:
        signals.task_received.disconnect(receiver)
    assert received == ["run"]
    kind, number, *_ = protocol.read(ends[1].receive())
    assert (kind, number, caplog.messages) == (protocol.OUTCOME, 1, [])
