"""When an abandoned runtime gives up its shards; at exit, see ``tests/worker/test_shutdown_timeout.py``."""

from __future__ import annotations

import logging

import pytest

from celery_lowkiq.integration.bootstep import shutdown
from celery_lowkiq.rules.leases import EXIT_TIMEOUT


class Abandoned:
    """A runtime whose batch goes on."""

    released_for = None

    def join(self, timeout):
        return False

    def release_at_exit(self, timeout):
        self.released_for = timeout


def test_nothing_is_given_up_when_somebody_configures_logging_anew(monkeypatch):
    monkeypatch.setattr(shutdown, "_exit_hooks", [])
    abandoned = Abandoned()
    shutdown.release_shards_at_exit(abandoned)
    (exit_hook,) = shutdown._exit_hooks
    logging.shutdown([lambda: exit_hook])
    assert abandoned.released_for is None


def test_a_log_handler_that_fails_is_no_reason_to_keep_shards(monkeypatch):
    monkeypatch.setattr(shutdown, "_exit_hooks", [])
    monkeypatch.setattr(shutdown.threading.main_thread(), "is_alive", lambda: False)
    monkeypatch.setattr(shutdown.logging, "shutdown", failing)
    abandoned = Abandoned()
    shutdown.release_shards_at_exit(abandoned)
    (exit_hook,) = shutdown._exit_hooks
    with pytest.raises(RuntimeError):
        exit_hook.close()
    assert abandoned.released_for == EXIT_TIMEOUT


def failing():
    raise RuntimeError("a handler of somebody's")
