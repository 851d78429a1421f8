"""The middlewares of the examples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.exceptions import Reject

from celery_lowkiq import Again, BusinessFailure, JobsFailed
from celery_lowkiq.integration.decode import RunJob
from celery_lowkiq.rules.basics import compose
from examples import middlewares
from examples.middlewares import closing, log_runs, report_errors

TASK = SimpleNamespace(name="sync")
JOBS = [RunJob("1", ("x", "y"), (1.0, 2.0), -1, 0.0, None), RunJob("2", ("z",), (1.0,), 3, 0.0, None)]


def raising(error):
    def call():
        raise error

    return call


def test_each_run_is_one_line(caplog):
    caplog.set_level("INFO")
    assert compose([log_runs], TASK, JOBS, lambda: 7) == 7
    with pytest.raises(KeyboardInterrupt):
        compose([log_runs], TASK, JOBS, raising(KeyboardInterrupt()))
    done, raised = [record.getMessage() for record in caplog.records]
    assert done.startswith("sync of {'1': 2, '2': 1} done in 0.0")
    assert "raised KeyboardInterrupt" in raised


@pytest.mark.parametrize(
    "error, reported",
    [
        (ValueError("boom"), ["1", "2"]),
        (JobsFailed({"2": ValueError("boom")}), ["2"]),
        (JobsFailed({"1": BusinessFailure("no"), "2": Again()}), []),
        (Again(), []),
        (BusinessFailure("not eligible"), []),
        (Reject("not mine"), []),
    ],
)
def test_errors_are_reported_with_their_jobs(monkeypatch, error, reported):
    seen = []
    monkeypatch.setattr(middlewares, "report", lambda error, task, job, retry_count: seen.append(job))
    with pytest.raises(type(error)):
        compose([report_errors], TASK, JOBS, raising(error))
    assert seen == reported


def test_connections_are_closed_after_each_run_and_change_nothing_of_it(caplog):
    closed = []
    middleware = closing(lambda: closed.append("one"), raising(OSError("gone")), lambda: closed.append("two"))
    assert compose([middleware], TASK, JOBS, lambda: 7) == 7
    with pytest.raises(KeyError):
        compose([middleware], TASK, JOBS, raising(KeyError("boom")))
    assert closed == ["one", "two"] * 2
    assert caplog.text.count("sync: a connection could not be closed") == 2
