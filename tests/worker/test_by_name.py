"""Calls by name, which two workers move from the broker to the store."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from tests.waiting import eventually

IDS = ("0", "1", "2", "3")


@pytest.fixture
def sender(settings):
    """An app without the task's code, whose messages say when they were sent."""
    made = Celery("sender", broker=settings["broker_url"], set_as_current=False)
    made.conf.lowkiq_message_score = "sent"
    yield made
    made.close()


def waiting(task, job_id):
    job = task.ordered_queue.job(job_id, payload_limit=1000).waiting
    return job.payloads if job else ()


@pytest.mark.full
@pytest.mark.parametrize("alternating", [False, True], ids=["by name", "and by delay"])
def test_calls_that_wait_together_keep_the_order_in_which_they_were_sent(
    app, settings, start_worker, ledger, sender, alternating
):
    """O3: 400 calls of one sender by name, every other one as ``delay``: no inversion."""
    settings["lowkiq_message_score"] = "sent"
    record = app.tasks["record"]
    record.ordered_queue.pause()
    start_worker()
    start_worker()
    for number in range(400):
        job_id = str(number // 2 % 4)
        if alternating and number % 2:
            record.delay(job_id, number)
        else:
            sender.send_task("record", (job_id, number))
    eventually(lambda: sum(len(waiting(record, job_id)) for job_id in IDS) == 400, 60)
    record.ordered_queue.resume()
    runs = {line["id"]: line["payloads"] for line in ledger.wait_for("end", 4)}
    assert runs == {job_id: [n for n in range(400) if n // 2 % 4 == int(job_id)] for job_id in IDS}


def test_a_call_by_name_says_score_and_priority(app, start_worker, ledger, sender):
    """O3: an app that knows nothing of ordered tasks writes a header."""
    batches = app.tasks["batches"]
    batches.ordered_queue.pause()
    start_worker()
    due = time.time() + 1
    for score in (9, 7.5):
        sender.send_task("batches", ("1", score), headers={"lowkiq": {"score": score, "perform_in": due}})
    eventually(lambda: len(waiting(batches, "1")) == 2)
    assert batches.ordered_queue.job("1").waiting.perform_in == pytest.approx(due, abs=1e-3)
    batches.ordered_queue.resume()
    (batch,) = ledger.wait_for("batch")
    assert batch["jobs"] == [["1", [7.5, 9.0], -1]]
