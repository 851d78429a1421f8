"""Strict exclusion: a timer at the earliest deadline of what runs, and a kernel that keeps it."""

from __future__ import annotations

import math
import mmap
import os
import signal
import subprocess
import sys
import time

import pytest

from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Lease, QueueSpec, ShardRef
from celery_lowkiq.worker.exclusion import KernelTimer, KillLogger, Strict
from celery_lowkiq.worker.owned_shard import OwnedShard
from tests.unit.nodes import SHARDS, Node
from tests.waiting import eventually

LINUX = pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the timer is Linux's")


class FakeTimer:
    def __init__(self):
        self.at = None

    def set(self, at):
        self.at = at


def held(shard, renewed_at):
    ref = ShardRef("q", shard)
    return OwnedShard(QueueSpec("q"), Lease(ref, "me", 1), lease_seconds=10, renewed_at=renewed_at)


def test_the_timer_stands_at_the_earliest_deadline_of_what_runs():
    timer = FakeTimer()
    strict = Strict(timer)
    first, second = held(0, renewed_at=100), held(1, renewed_at=101)
    strict.begin(second)
    assert timer.at == 109
    strict.begin(first)
    assert timer.at == 108
    first.renewed_at = 102
    strict.renewed()
    assert timer.at == 109
    strict.end(second)
    assert timer.at == 110
    strict.end(first)
    assert timer.at is None
    strict.renewed()
    assert timer.at is None


def test_a_node_sets_it_while_a_batch_runs_and_moves_it_with_each_renewal():
    timer, seen = FakeTimer(), []
    one = Node(exclusion=Strict(timer), lease_seconds=0.5)

    def act(batch):
        seen.append(timer.at)
        eventually(lambda: timer.at > seen[0])
        seen.append(timer.at)

    one.runner.act = act
    one.store.push(SHARDS[0], "1")
    one.start().ran("1")
    one.runtime.drain()
    assert one.runtime.join(5)
    assert timer.at is None
    assert seen[1] > seen[0]


@pytest.fixture
def kill_logger():
    line = KillLogger(SystemClock())
    yield line
    line.close()
    line._thread.join(5)
    assert not line._thread.is_alive()


def running(kill_logger, seconds, lapsed=0.0):
    """A strict node whose batch runs under a lease of ``seconds``, renewed ``lapsed`` s ago."""
    one = OwnedShard(
        QueueSpec("q"),
        Lease(ShardRef("q", 0), "me", 1),
        lease_seconds=seconds,
        renewed_at=SystemClock().monotonic() - lapsed,
    )
    strict = Strict(FakeTimer(), kill_logger)
    strict.begin(one)
    return strict, one


def test_a_last_line_is_written_before_the_end(kill_logger, caplog):
    """P3: SIGKILL leaves none."""
    # It is due 39 s after the renewal, the end comes after 48.
    _, one = running(kill_logger, seconds=60, lapsed=38.9)
    eventually(lambda: caplog.records)
    assert one.deadline - 0.15 * 60 <= SystemClock().monotonic() < one.deadline
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert "strict exclusion ends this process (SIGKILL) in " in record.message
    assert "a batch of shard q/0 runs" in record.message


def test_the_last_line_is_written_once_and_taken_back_when_the_lease_is_renewed_in_time(kill_logger, caplog):
    """P3"""
    strict, one = running(kill_logger, seconds=60, lapsed=42)
    eventually(lambda: caplog.records)
    for _ in range(3):
        strict.renewed()
    one.renewed_at = SystemClock().monotonic()
    strict.renewed()
    eventually(lambda: len(caplog.records) == 2)
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "WARNING"]
    assert "lets this process go on" in caplog.messages[1]


def test_batches_that_end_in_time_leave_the_thread_asleep(kill_logger, caplog):
    """P3: what is new costs a batch nothing but a lock."""
    wakes = []
    kill_logger._write_if_due, real = lambda: wakes.append(1) or real(), kill_logger._write_if_due
    strict, one = running(kill_logger, seconds=60)
    eventually(lambda: math.isfinite(kill_logger._wakes_at))
    asleep = len(wakes)
    for _ in range(1000):
        strict.end(one)
        strict.begin(one)
    assert len(wakes) == asleep
    assert caplog.records == []


def test_a_run_that_is_overdue_loses_its_lease():
    queue = QueueSpec("q", shards=4, max_run=0.1)
    timer = FakeTimer()
    one = Node(queues=[queue], exclusion=Strict(timer), lease_seconds=0.5)
    ended = []

    def act(batch):
        # Shards with nothing overdue are renewed all the time.
        counters = [one.store.leases[shard].counter for shard in SHARDS[:2]]
        eventually(lambda: one.store.leases[SHARDS[1]].counter > counters[1] + 5)
        ended.append((one.host.alarms, one.runner.runs, timer.at, time.clock_gettime(time.CLOCK_BOOTTIME)))

    one.runner.act = act
    one.store.push(SHARDS[0], "1")
    one.start()
    eventually(lambda: ended, 10)
    ((alarms, _, at, now),) = ended
    assert len(alarms) == 1
    assert at <= now
    one.runtime.abandon()
    one.runtime.join(5)


SPIN = """
import mmap, sys, time
from celery_lowkiq.worker.exclusion import KernelTimer
shared = mmap.mmap(int(sys.argv[1]), 8)
timer = KernelTimer()
timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + 30)
timer.set(None)
timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + float(sys.argv[2]))
count = 0
while True:
    count += 1
    shared[:8] = count.to_bytes(8, "little")
"""


def spin(file, seconds):
    return subprocess.Popen([sys.executable, "-c", SPIN, str(file), str(seconds)], pass_fds=[file])


def test_strict_exclusion_is_refused_where_no_such_timer_exists(monkeypatch):
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    with pytest.raises(ConfigurationError, match=r"lowkiq_exclusion='strict' .* no timer on CLOCK_BOOTTIME"):
        KernelTimer()


@LINUX
@pytest.mark.parametrize("stopped", [False, True])
def test_the_kernel_ends_a_process_even_while_it_is_stopped(stopped):
    """And nothing of it runs afterwards, whoever continues it."""
    with open(os.memfd_create("spin"), "r+b") as file:
        file.truncate(8)
        counter = mmap.mmap(file.fileno(), 8)
        child = spin(file.fileno(), 0.3)
        try:
            eventually(lambda: int.from_bytes(counter[:8], "little") > 0)
            if stopped:
                child.send_signal(signal.SIGSTOP)
            last = counter[:8]
            assert child.wait(10) == -signal.SIGKILL
            assert not stopped or counter[:8] == last
        finally:
            child.kill()
            child.wait()


@LINUX
def test_a_time_that_has_passed_ends_it_at_once():
    with open(os.memfd_create("spin"), "r+b") as file:
        file.truncate(8)
        child = spin(file.fileno(), -1e9)
        try:
            assert child.wait(10) == -signal.SIGKILL
        finally:
            child.kill()
            child.wait()
