"""The connection between a worker and its node process, and what becomes of what it cannot carry."""

from __future__ import annotations

import fcntl
import pickle
import resource
from multiprocessing.connection import Connection, Pipe
from types import SimpleNamespace

import pytest

from celery_lowkiq.integration.bootstep.node.server import Outbox
from celery_lowkiq.integration.bootstep.node.supervisor import NodeSupervisor
from celery_lowkiq.integration.events import EventRelay
from tests.waiting import eventually

#: The first descriptor that `select` refuses.
MOST = 1024


@pytest.fixture
def pipe():
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def proxy(app, pipe):
    made = NodeSupervisor(SimpleNamespace(app=app, hub=None, event_dispatcher=None), {}, ())
    made._connection = pipe[0]
    return made


def test_what_cannot_be_pickled_ends_no_outbox(pipe, caplog):
    """The process said nothing any more: neither answers nor that it must stop."""
    outbox = Outbox(pipe[1])
    outbox.put("event", "task-started", {"uuid": "1"})
    outbox.put("event", "task-started", {"what": lambda: 0})
    outbox.put("stop", 70)
    outbox.close()
    told = []
    while pipe[0].poll():
        told += map(pickle.loads, pipe[0].recv())
    assert [message for message in told if message[0] != "counts"] == [
        ("event", "task-started", {"uuid": "1"}),
        ("stop", 70),
    ]
    assert "'event' could not be sent to the worker" in caplog.text


@pytest.mark.parametrize(
    "groups, sent", [(None, []), ((), ["task-started", "lowkiq-overdue"]), (("task",), ["task-started"])]
)
def test_only_events_that_the_worker_sends_are_relayed(groups, sent):
    relayed = []
    relay = EventRelay(lambda kind, fields: relayed.append((kind, fields["timestamp"] > 0)))
    relay.switch(groups)
    for kind in ("task-started", "lowkiq-overdue"):
        relay.send(kind, uuid="1")
    assert relayed == [(kind, True) for kind in sent]


def test_what_cannot_be_read_is_left_out(proxy, pipe, caplog):
    """The error went to the worker's event loop."""
    pipe[1].send_bytes(b"no pickle")
    pipe[1].send([pickle.dumps(("reply", 7, "answer", ""))])
    eventually(lambda: proxy._read() or proxy._replies)
    assert proxy._replies == {7: ("answer", "")}
    assert "cannot be read" in caplog.text


def test_a_worker_with_many_descriptors_is_heard(proxy, pipe):
    """A node process that was started late was not told to end, or that a call was revoked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= MOST:
        pytest.skip("the system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MOST + 100), hard))
    try:
        proxy._connection = Connection(fcntl.fcntl(pipe[0].fileno(), fcntl.F_DUPFD_CLOEXEC, MOST))
        proxy.quiet(True)
        proxy._connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ticket, name, (wanted,) = pipe[1].recv()
    assert (ticket, name, wanted.is_quiet) == (None, "obey", True)
