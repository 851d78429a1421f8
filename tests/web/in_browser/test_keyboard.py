"""The dashboard without a mouse."""

from __future__ import annotations

import pytest

from tests.waiting import eventually

from .acting import reads

pytestmark = pytest.mark.browser

#: As WebDriver spells the keys.
TAB, ENTER = "\ue004", "\ue007"
#: The stop that has the focus: its words, whether it is framed, and whether nothing covers it.
FOCUSED = """
    const one = document.activeElement, box = one.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + Math.min(box.height / 2, 12));
    return [one.innerText || one.getAttribute("aria-label") || one.name || "",
            getComputedStyle(one).outlineStyle !== "none", one.contains(top) || (top && top.contains(one))];
"""


@pytest.fixture
def keys(browser):
    # Here, as selenium is there where a browser is.
    from selenium.webdriver import ActionChains

    def send(*given):
        ActionChains(browser).send_keys(*given).perform()

    return send


def go_to(browser, keys, words):
    """With the tab key; every stop on the way can be seen."""
    passed = []
    while not (passed and passed[-1].startswith(words)):
        keys(TAB)
        stop, framed, uncovered = browser.execute_script(FOCUSED)
        assert framed, stop
        assert uncovered, stop
        passed.append(stop)
        assert len(passed) < 100, passed


def test_the_bar_is_skipped(browser, visit, keys):
    visit("/queue?queue=sync_order")
    keys(TAB, ENTER)
    eventually(lambda: browser.execute_script("return document.activeElement.id") == "main")


def test_an_id_is_found_from_any_page(app, browser, visit, keys):
    app.tasks["update_stock"].apply_async(("KEYS-FOUND", {"delta": 1}), countdown=7200)
    visit("/nodes")
    keys("/")
    keys("KEYS-FOUND", ENTER)
    reads(browser, "KEYS-FOUND", "h1")
    assert "queue=update_stock" in browser.current_url


def test_a_listing_is_reached_and_a_job_of_it_is_deleted(app, browser, visit, keys, stock):
    task = app.tasks["update_stock"]
    task.apply_async(("KEYS", {"delta": 1}), countdown=7200)
    visit("/queue?queue=update_stock&list=morgue")
    go_to(browser, keys, "Waiting")
    keys(ENTER)
    reads(browser, "Waiting", "nav.tabs [aria-current]")
    visit("/job?queue=update_stock&id=KEYS")
    go_to(browser, keys, "Delete")
    keys(ENTER)
    reads(browser, "Delete: 1 waiting job of queue update_stock?", "h1")
    go_to(browser, keys, "Leave it")
    keys(ENTER)
    reads(browser, "KEYS", "h1")
    assert stock.job("KEYS").waiting
    go_to(browser, keys, "Delete")
    keys(ENTER)
    reads(browser, "Delete: 1 waiting job of queue update_stock?", "h1")
    go_to(browser, keys, "Delete")
    keys(ENTER)
    reads(browser, "Delete: deleted 1 waiting job", ".did")
    assert stock.job("KEYS").waiting is None
