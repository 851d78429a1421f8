"""A queue moves to another number of shards: its form, and its picture beside what Redis has."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules import resharding
from tests.waiting import eventually
from tests.web.in_browser.acting import do, leave, press, reads, text, violations
from tests.web.migrating import Counts, flipped, in_redis
from tests.web.serving import served

pytestmark = pytest.mark.browser

#: Seconds within which the page must have what Redis has.
SOON = 2.0
#: Shards and jobs of each row.
ROWS = """
    return [...document.querySelectorAll(".moves")].map((list) => [...list.children].map(
      (row) => [...row.querySelectorAll("span:not(.hidden)")].map((part) => part.lastChild.data)));
"""
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


def on_page(browser):
    sides = browser.execute_script(ROWS)
    return Counts(*({shard: int(count.replace(",", "")) for shard, count in side} for side in sides))


def looks_fine(browser):
    for scheme in ("light", "dark"):
        # Colours that are about to change have no contrast.
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        media = {"features": [{"name": name, "value": value} for name, value in features.items()]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        assert violations(browser) == []
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        bars = browser.execute_script(
            "return [...document.querySelectorAll('.bar')].map((bar) => bar.getBoundingClientRect().width)"
        )
        assert min(bars) > 40
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_picture_of_a_frozen_mover_has_the_counts_of_redis(idle_shop, browser, contented, monkeypatch):
    app = idle_shop
    queue = app.tasks["sync_order"].ordered_queue
    # A turn sorts some jobs of each shard, and is not all.
    monkeypatch.setattr(resharding, "TURN_JOBS", 100)

    def equal():
        found = in_redis(app, queue)
        eventually(lambda: on_page(browser) == found, SOON)
        assert in_redis(app, queue) == found
        return found

    with served(app) as url:
        browser.get(f"{url}/queue?queue=sync_order&list=shards")
        mover = flipped(app, queue, 48)
        reads(browser, "Resharding 24 → 48", "#migration-title")
        begin = equal()
        assert sum(begin.left.values()) == queue.stats().length
        looks_fine(browser)
        reads(browser, "0 of 24 old shards have nothing left to move", "#moves")
        assert len(browser.find_elements("css selector", "#map a.cell.new")) == 24
        assert len(browser.find_elements("css selector", "#map a.cell.to-sort-4")) == 24
        for number in range(100):
            app.tasks["sync_order"].apply_async((f"NEW-{number}", {"version": 1}), countdown=3600)
        called = equal()
        assert any(called.right[str(shard)] for shard in range(24, 48))
        mover.turn()
        assert sum(equal().left.values()) < sum(called.left.values())
        browser.get(f"{url}/")
        reads(browser, "resharding 24 → 48", "#queues")
        assert violations(browser) == []
        browser.get(f"{url}/queue?queue=sync_order&list=shards")
        while queue.migration():
            mover.turn()
        eventually(lambda: "Resharding" not in text(browser))
        reads(browser, "48", "#tabs [aria-current] .tab-count")
        leave(browser)


def test_a_queue_is_resharded(browser, visit, app):
    queue = app.tasks["index_product"].ordered_queue
    for shards in (12, 8):
        visit("/queue?queue=index_product&list=shards")
        box = browser.find_element("name", "shards")
        box.clear()
        box.send_keys(str(shards))
        press(browser, "Reshard")
        reads(browser, f"Reshard: queue index_product to {shards} shards?", "h1")
        assert violations(browser) == []
        press(browser, "Reshard")
        eventually(lambda: queue.stored_spec().layout.route == str(shards))  # noqa: B023 at once
        reads(browser, str(shards), "#tabs [aria-current] .tab-count")
        assert queue.stats().length == 230


def test_a_move_is_paused_resumed_and_aborted(idle_shop, browser, contented):
    queue = idle_shop.tasks["sync_order"].ordered_queue
    flipped(idle_shop, queue, 7)
    with served(idle_shop) as url:
        browser.get(f"{url}/queue?queue=sync_order")
        press(browser, "Pause the move")
        reads(browser, "Pause the move: paused the move of queue sync_order", ".did")
        reads(browser, "paused", "#migration")
        assert queue.migration().paused_since
        assert violations(browser) == []
        press(browser, "Resume the move")
        eventually(lambda: queue.migration().paused_since is None)
        browser.get(f"{url}/queue?queue=sync_order")
        do(browser, "Abort the move", "Abort the move: the move of queue sync_order?")
        reads(browser, "moves back", "#migration")
        assert (queue.migration().former, queue.migration().shards) == (7, queue.spec.shards)
        leave(browser)
