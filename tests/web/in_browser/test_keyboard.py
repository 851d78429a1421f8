"""The dashboard without a mouse."""

from __future__ import annotations

import pytest

from tests.waiting import eventually
from tests.web.in_browser.acting import ENTER, TAB, go_to, reads

pytestmark = pytest.mark.browser


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
    # The tab with its number, not the word of the tile.
    go_to(browser, keys, "Waiting\n")
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
