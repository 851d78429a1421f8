"""When an abandoned runtime gives up its shards; at exit, see ``tests/worker/test_shutdown_timeout.py``."""

from __future__ import annotations

import logging

import pytest

from celery_lowkiq.integration import exiting
from celery_lowkiq.rules.ownership import EXIT_PATIENCE


class Abandoned:
    """A runtime whose batch goes on."""

    let_go_for = None

    def join(self, timeout):
        return False

    def let_go(self, timeout):
        self.let_go_for = timeout


def test_nothing_is_given_up_when_somebody_configures_logging_anew(monkeypatch):
    monkeypatch.setattr(exiting, "_last_acts", [])
    abandoned = Abandoned()
    exiting.let_go_at_exit(abandoned)
    (last_act,) = exiting._last_acts
    logging.shutdown([lambda: last_act])
    assert abandoned.let_go_for is None


def test_a_log_handler_that_fails_is_no_reason_to_keep_shards(monkeypatch):
    monkeypatch.setattr(exiting, "_last_acts", [])
    monkeypatch.setattr(exiting.threading.main_thread(), "is_alive", lambda: False)
    monkeypatch.setattr(exiting.logging, "shutdown", failing)
    abandoned = Abandoned()
    exiting.let_go_at_exit(abandoned)
    (last_act,) = exiting._last_acts
    with pytest.raises(RuntimeError):
        last_act.close()
    assert abandoned.let_go_for == EXIT_PATIENCE


def failing():
    raise RuntimeError("a handler of somebody's")
