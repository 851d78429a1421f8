"""What ends a worker ends it whatever the log does; a child process that cannot start ends none."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_lowkiq.integration.bootstep.engine import CeleryHost, Engine
from celery_lowkiq.integration.decode import RunJob
from celery_lowkiq.integration.processes import child_handle
from celery_lowkiq.integration.processes.child import Child, ChildOptions
from celery_lowkiq.integration.processes.child_handle import ChildHandle, NotStarted
from celery_lowkiq.integration.processes.child_runs import ChildRuns
from celery_lowkiq.integration.processes.protocol import read_settlements
from celery_lowkiq.rules.basics import package_logger
from celery_lowkiq.rules.models import Disposition, QueueSpec, Settlement
from celery_lowkiq.store.script import load, lua_files


def exits(*about, **options):
    raise SystemExit(1)


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(state, "should_stop", None)
    return CeleryHost(SimpleNamespace(call_soon=lambda p: None), SimpleNamespace(last_words=exits))


def test_a_log_that_exits_does_not_keep_the_worker_alive(host, monkeypatch):
    """The recipe of a handler that ends the process at an error ended the thread alone."""
    monkeypatch.setattr(package_logger, "critical", exits)
    with pytest.raises(SystemExit):
        host.stop(70, "a lane has ended")
    assert state.should_stop == 70


def test_last_words_that_exit_do_not_keep_a_worker_without_its_event_loop(host):
    with pytest.raises(SystemExit):
        Engine._on_dead_loop(SimpleNamespace(_host=host), ValueError("gone"))
    assert state.should_stop == 70


def test_a_child_process_without_descriptors_is_one_that_does_not_start(monkeypatch):
    """The lane ended where it had to tell the process of dead jobs, and the worker with it."""

    def no_descriptors():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(child_handle.socket, "socketpair", no_descriptors)
    with pytest.raises(NotStarted, match="lane-0 has no child process"):
        ChildHandle("lane-0", ChildOptions("app:app", (), "host", None, None, None))


def test_dead_jobs_that_cannot_be_told_of_end_no_lane(caplog):
    """As above, for payloads that cannot be pickled."""
    runner = SimpleNamespace(run_by=lambda way, queues: None)
    runs = ChildRuns({}, consumer=None, settings=None, runner=runner)
    runs.report_dead("orders", [RunJob("1", (lambda: "no pickle",), (1.0,), 3, 0.0, "boom")])
    assert "on_retries_exhausted of orders failed" in caplog.text


def test_a_dead_job_that_cannot_be_told_of_is_settled_all_the_same(caplog):
    """The run was repeated every 5 s."""
    child = Child.__new__(Child)
    dead = [Settlement("1", 7, Disposition.DIE, 3)]
    job = RunJob("1", (lambda: "no pickle",), (1.0,), 3, 0.0, "boom")
    child._runner = SimpleNamespace(
        run=lambda batch: tuple(dead), take_result=lambda: None, dead_jobs=lambda batch: [job]
    )
    child._options = SimpleNamespace(max_tasks=None, max_memory_kib=None)
    batch = SimpleNamespace(queue=QueueSpec("orders"), jobs=(job,))
    assert read_settlements(child._outcome(1, batch), batch) == (tuple(dead), [])
    assert "on_retries_exhausted of orders failed" in caplog.text


def test_a_worker_reads_all_scripts_at_its_start(app):
    """The first use of a script without a descriptor for its file ended a lane, or ownership."""
    load.cache_clear()
    consumer = SimpleNamespace(app=app, hostname="w", event_dispatcher=None, disable_rate_limits=False)
    Engine(consumer, {}, (), 1, SimpleNamespace())
    assert load.cache_info().currsize == sum("/" not in name for name in lua_files()) > 50
