"""When an abandoned runtime gives up its shards; at exit, see ``tests/worker/test_shutdown_timeout.py``."""

from __future__ import annotations

import logging

from celery_lowkiq.integration import exiting


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
