"""A change is asked about, then watched while it runs, and cancelled."""

from __future__ import annotations

import time

import pytest

from tests.waiting import eventually
from tests.web.in_browser.acting import due_later, press, reads, text, violations

pytestmark = pytest.mark.browser


def bar(browser):
    return int(browser.execute_script("return document.querySelector('progress').value"))


def grows(browser, gate):
    before = bar(browser)
    gate.step()
    eventually(lambda: bar(browser) > before)


def test_its_bar_moves_until_it_is_done(watched, gate):
    assert violations(watched) == []
    grows(watched, gate)
    # Who has the keyboard on the button sees it, too.
    watched.execute_script("document.querySelector('main form button').focus()")
    grows(watched, gate)
    gate.step(1000)
    reads(watched, "done", "[role=status]")
    watched.execute_script("document.activeElement.blur()")
    reads(watched, "Back to the queue")
    assert bar(watched) == watched.execute_script("return document.querySelector('progress').max")
    assert violations(watched) == []


def test_a_cancelled_operation_says_what_was_done(watched, gate, stock):
    first_step = int(text(watched, ".progress-line strong"))
    later = due_later(stock, time.time())
    press(watched, "Cancel")
    reads(watched, "Stops after this step")
    assert violations(watched) == []
    gate.step()
    reads(watched, "What was done until then stays done.")
    done = int(text(watched, ".progress-line strong"))
    # The step that ran was perhaps of an empty shard.
    assert done >= first_step
    assert due_later(stock, time.time()) == later - (done - first_step) > 0
    watched.find_element("link text", "Operations").click()
    reads(watched, "cancelled", "tbody tr")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_question_can_be_left_alone(browser, visit, app, stock, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    app.tasks["update_stock"].apply_async(("KEPT", {"delta": 1}), countdown=7200)
    visit("/job?queue=update_stock&id=KEPT")
    press(browser, "Delete")
    reads(browser, "Delete: 1 waiting job of queue update_stock?", "h1")
    assert violations(browser) == []
    browser.find_element("link text", "Leave it").click()
    reads(browser, "KEPT", "h1")
    assert stock.job("KEPT").waiting
