"""docs/order-after-failure.md: its ledger is right at the end, whichever way an operator takes."""

from __future__ import annotations

from uuid import uuid4

import pytest
from celery import Celery, current_app

from celery_lowkiq.rules.job_filter import FailureFilter
from tests.docs.test_docs import blocks

PAGE = "docs/order-after-failure.md"


@pytest.fixture
def lowkiq_app(lowkiq_server):
    before = current_app._get_current_object()
    app = Celery("ledger", broker=lowkiq_server.url, set_as_current=True)
    yield app
    app.close()
    before.set_current()


@pytest.fixture
def page(lowkiq):
    """The names of the page, after its entry has died."""
    names = {"__name__": f"ledger_{uuid4().hex}"}
    task, calls, _ = blocks(PAGE)
    exec(compile(task, PAGE, "exec"), names)
    exec(compile(calls, PAGE, "exec"), names)
    lowkiq.drain(propagate=False)
    return names


def balance(page, account="42"):
    return sum(entry["amount"] for entry in page["ledger"][account])


def test_the_ledger_is_right_after_a_requeue(lowkiq, page):
    book = page["book"]
    book.delay("42", {"n": 3, "amount": -50, "currency": "USD"})
    book.delay("43", {"n": 1, "amount": 5, "currency": "EUR"})
    lowkiq.drain()
    assert (balance(page), balance(page, "43")) == (100, 5)
    found = book.ordered_queue.why("42")
    assert found.kind == "behind_dead"
    assert "after: KeyError: 'GBP'. Requeue or edit" in found.text
    exec(compile(blocks(PAGE)[2], PAGE, "exec"), page)
    assert lowkiq.drain() == 1
    assert [entry["n"] for entry in page["ledger"]["42"]] == [1, 2, 3]
    assert balance(page) == pytest.approx(100 + 84 - 45)


def test_a_wrong_entry_is_edited_and_requeued(lowkiq, page):
    book = page["book"]
    queue = book.ordered_queue
    assert queue.edit_dead_payload(
        "42", {"n": 1, "amount": 100, "currency": "EUR"}, {"n": 1, "amount": 100, "currency": "USD"}
    )
    page["rates"]["GBP"] = 1.2
    queue.requeue(["42"])
    lowkiq.drain()
    assert queue.held_ids().items == ()
    assert [entry["n"] for entry in page["ledger"]["42"]] == [1, 2]


def test_the_account_goes_on_without_the_dead_entry(lowkiq, page):
    queue = page["book"].ordered_queue
    assert [one.id for one in queue.held_ids().items] == ["42"]
    page["rates"]["GBP"] = 1.2
    assert queue.go_on(["42"]) == 1
    lowkiq.drain()
    assert [entry["n"] for entry in page["ledger"]["42"]] == [1, 2]
    assert queue.stats().morgue_length == 1


def test_nothing_of_the_account_is_needed(lowkiq, page):
    queue = page["book"].ordered_queue
    assert (queue.delete(["42"]), queue.delete_dead(["42"])) == (1, 1)
    assert queue.why("42").kind == "nowhere"


def test_many_ids_that_died_of_one_error_are_requeued_together(lowkiq, page):
    book = page["book"]
    for account in range(20):
        book.delay(account, {"n": 1, "amount": 1, "currency": "GBP"})
    lowkiq.drain(propagate=False)
    page["rates"]["GBP"] = 1.2
    queue = book.ordered_queue
    wanted = FailureFilter(error="KeyError*")
    assert queue.change_matching(queue.requeue, wanted, dead=True) == 21
    lowkiq.drain()
    assert queue.held_ids().items == ()
    assert queue.stats().length == 0
