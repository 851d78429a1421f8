"""Results over the broker: what the backend knows of a call, it knows from the call's own request."""

from __future__ import annotations

import logging

import pytest
from celery import Celery

from celery_lowkiq import ordered_task


@pytest.fixture
def lowkiq_app(lowkiq_server):
    """An app whose results are messages."""
    app = Celery("rpc", broker=lowkiq_server.url, backend="rpc://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def sent(lowkiq_app, monkeypatch):
    """Task id and state of each result that has somewhere to go."""
    found = []
    send = lowkiq_app.backend._to_result

    def noted(task_id, state, *rest):
        found.append((task_id, state))
        return send(task_id, state, *rest)

    monkeypatch.setattr(lowkiq_app.backend, "_to_result", noted)
    return found


@pytest.mark.parametrize("again", [False, True], ids=["track_started", "update_state"])
def test_calls_of_a_run_of_several_are_told_that_it_has_started(lowkiq, lowkiq_app, sent, caplog, again):
    """P5: an ERROR with a traceback stood in the log, and STARTED was stored for none of them."""

    @ordered_task(app=lowkiq_app, name="several", bind=True, track_started=not again)
    def several(self, payloads_by_id):
        if again:
            self.update_state(state="STARTED")

    results = [several.delay("1", n) for n in range(2)]
    with caplog.at_level(logging.ERROR):
        lowkiq.drain()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    for result in results:
        states = [state for task_id, state in sent if task_id == result.id]
        assert (states[0], states[-1]) == ("STARTED", "SUCCESS")
