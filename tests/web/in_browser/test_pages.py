"""The dashboard as somebody sees it: every page and every action, with a real worker behind."""

from __future__ import annotations

import itertools
import time

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.health import Hint
from tests.browsing import complaints
from tests.waiting import eventually
from tests.web import showcase
from tests.web.in_browser.acting import END, PAGES, do, leave, press, reads, text, violations
from tests.web.serving import served
from tests.web.showcase import FAILING, SLOW

pytestmark = pytest.mark.browser


#: The lanes of the map, with the numbers of their shards.
ROWS = """
    return [...document.querySelectorAll(".map > li")].map((row) => [row.querySelector(".map-lane").innerText,
      [...row.querySelectorAll(".cell > [aria-hidden]")].map((cell) => Number(cell.innerText))]);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_serious(browser, visit, page, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    visit(PAGES[page])
    assert browser.title
    assert violations(browser) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_shows_every_page_without_moving_it_sideways(browser, visit, page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        visit(PAGES[page])
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_link_leads_somewhere(browser, visit, site):
    """From the first page, one of each kind of page and listing."""
    seen: dict[str, str] = {}
    to_see = ["/"]
    while to_see:
        path = to_see.pop()
        visit(path)
        assert "Something went wrong" not in text(browser), path
        links = browser.execute_script("return [...document.links].map(link => link.getAttribute('href'))")
        for link in links:
            kind = (
                link.partition("#")[0]
                .partition("&id=")[0]
                .partition("&after=")[0]
                .partition("&failure=")[0]
                .partition("&state=")[0]
            )
            if kind.startswith("/") and kind not in seen:
                seen[kind] = link
                to_see.append(link)
    assert {"/nodes", "/doctor", "/operations", "/job?queue=sync_order"} <= set(seen)


def test_a_tracked_group_is_watched_and_cancelled(browser, visit):
    visit("/trackers")
    browser.find_element("link text", "invoices of November").click()
    reads(browser, "of 10 calls have ended")
    assert violations(browser) == []
    browser.find_element("partial link text", "Error").click()
    reads(browser, "has no address", "#calls")
    press(browser, "Cancel waiting calls")
    reads(browser, "10 of 10 calls have ended")
    reads(browser, "cancelled", "#progress")


def test_the_page_is_kept_up_to_date_until_it_is_paused(app, browser, visit):
    visit("/queue?queue=update_stock")
    before = text(browser, "#tiles")
    app.tasks["update_stock"].apply_async(("NEW-1", {"delta": 1}), countdown=7200)
    eventually(lambda: text(browser, "#tiles") != before)
    browser.find_element("css selector", ".live-switch").click()
    assert text(browser, ".live-switch") == "Paused"
    browser.find_element("css selector", ".live-switch").click()


def test_an_unreachable_redis_is_said_over_the_old_numbers(browser):
    with EmbeddedServer() as server:
        app = showcase.make_app(server.url)
        app.tasks["update_stock"].apply_async(("1", {"delta": 1}), countdown=7200)
        with served(app) as url:
            browser.get(f"{url}/queue?queue=update_stock")
            reads(browser, "Live", ".live-switch")
            server.kill()
            reads(browser, "Redis is unreachable. These are the numbers of ", "#outdated")
            assert text(browser, ".live-switch") == "Not live"
            tiles = "return getComputedStyle(document.getElementById('tiles')).opacity"
            assert float(browser.execute_script(tiles)) < 1
            # A page that is opened meanwhile comes by itself, too.
            browser.get(url)
            reads(browser, "Redis is unavailable")
            assert text(browser, ".live-switch") == "Not live"
            press(browser, "Retry", "body")
            reads(browser, "Redis is unreachable.", "#outdated")
            server.restart()
            reads(browser, "update_stock")
            reads(browser, "Live", ".live-switch")
            assert not browser.find_element("id", "outdated").is_displayed()
            assert float(browser.execute_script(tiles)) == 1
            leave(browser)
        app.close()
    complaints(browser)


#: Texts with a hyphen within a word, whose figures have one width: then the hyphen has it, too.
WIDE_HYPHENS = """
    return [...document.querySelectorAll("body *")].filter((one) =>
      [...one.childNodes].some((part) => part.nodeType === 3 && /\\w-\\w/.test(part.data)) &&
      getComputedStyle(one).fontVariantNumeric.includes("tabular-nums")).map((one) => one.innerText);
"""


@pytest.mark.parametrize("name", ["job", "retries"])
def test_the_hyphen_of_an_id_is_not_as_wide_as_a_digit(browser, visit, name):
    visit(PAGES[name])
    assert FAILING in text(browser)
    assert browser.execute_script(WIDE_HYPHENS) == []
    numbers = "return getComputedStyle(document.querySelector('.num')).fontVariantNumeric"
    assert browser.execute_script(numbers) == "tabular-nums"


def test_the_chart_tells_what_is_under_the_pointer(browser, visit):
    visit("/")
    chart = browser.find_element("css selector", "svg.chart")
    from selenium.webdriver import ActionChains

    ActionChains(browser).move_to_element(chart).perform()
    reads(browser, "processed", "#chart-note")


def test_the_chart_shows_a_day(browser, visit):
    visit("/queue?queue=sync_order")
    browser.find_element("link text", "24 h").click()
    reads(browser, "Last 24 hours", "#chart-title")
    assert text(browser, ".spans [aria-current]") == "24 h"
    assert len(browser.find_elements("css selector", "#chart svg [data-at]")) == 72
    assert violations(browser) == []


def test_the_theme_is_chosen_and_kept(browser, visit):
    def background():
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    def switch():
        return browser.find_element("css selector", ".foot .switch")

    visit("/")
    assert switch().text == "Theme: auto"
    found = []
    for theme in ("Theme: light", "Theme: dark"):
        switch().click()
        assert switch().text == theme
        visit("/nodes")
        assert switch().text == theme
        assert violations(browser) == []
        found.append(background())
    assert found == ["rgb(246, 246, 247)", "rgb(14, 14, 17)"]
    switch().click()
    assert switch().text == "Theme: auto"


def test_the_font_is_the_packages_own(browser, visit):
    visit("/")
    loaded = (
        "return document.fonts.ready.then((fonts) => [...fonts].map((font) => font.family + font.status))"
    )
    assert browser.execute_script(loaded) == ["Interloaded"]


def test_a_queue_is_paused_and_goes_on(browser, visit, orders):
    visit(PAGES["queue"])
    press(browser, "Pause")
    reads(browser, "no job starts", "#notes")
    assert orders.paused().queue
    press(browser, "Resume")
    eventually(lambda: not orders.paused().queue)


def test_a_shard_is_paused_and_goes_on(browser, visit, orders):
    visit(PAGES["shards"])
    press(browser, "Pause", "tr[@id='shard-2']")
    eventually(lambda: 2 in orders.paused().shards)
    press(browser, "Resume", "tr[@id='shard-2']")
    eventually(lambda: 2 not in orders.paused().shards)


def test_the_map_shows_who_works_what(browser, visit, app, orders):
    """Live: a lane that runs something says so, without loading the page again."""
    visit(PAGES["queue"])
    rows = browser.execute_script(ROWS)
    lanes = {shard.index: shard.lane for shard in orders.shards()}
    assert {shard: lane for lane, shards in rows for shard in shards} == lanes
    assert len(lanes) == 24
    app.tasks["sync_order"].delay(f"{SLOW}-0", {"status": "shipped", "version": 2})
    reads(browser, f"{SLOW}-0", "#map")
    assert browser.find_elements("css selector", "#map a.cell.runs")
    browser.find_element("css selector", "#map a.cell").click()
    reads(browser, "Owner", "#shards")
    assert "#shard-" in browser.current_url


def test_a_paused_shard_is_on_the_map_at_once(browser, visit, orders):
    visit(PAGES["queue"])
    assert not browser.find_elements("css selector", "#map .cell.paused[href$='#shard-5']")
    orders.pause(shard=5)
    eventually(lambda: browser.find_elements("css selector", "#map .cell.paused[href$='#shard-5']"))
    orders.resume(shard=5)
    eventually(lambda: not browser.find_elements("css selector", "#map .cell.paused[href$='#shard-5']"))


def test_the_map_prints(browser, visit):
    """What is pressed is left out; colours stay."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        visit(PAGES["queue"])
        shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
        assert {browser.execute_script(shown, one) for one in (".top", ".filter", ".states")} == {"none"}
        exact = "return getComputedStyle(document.querySelector('.cell')).printColorAdjust"
        assert browser.execute_script(exact) == "exact"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_load_of_shards_is_shown_with_what_to_do(browser, visit, monkeypatch):
    hint = Hint("Ids wait for each other in sync_order/3.", "celery -A proj lowkiq reshard sync_order 48")
    monkeypatch.setattr(OrderedQueue, "shard_hints", lambda queue, shards: [hint])
    visit(PAGES["shards"])
    assert text(browser, "#hints").split("\n") == [f"{hint.text} {hint.advice}"]
    assert browser.find_elements("css selector", "#shards svg.bar rect[width='100.0']")
    assert violations(browser) == []


def test_a_failed_job_tells_why_it_waits_and_is_run_now(browser, visit, orders):
    visit(PAGES["job"])
    assert "CarrierUnavailable" in text(browser, "pre.error")
    assert "waits for its time" in text(browser, ".why")
    assert "on worker-1@shop" in text(browser, "#timeline")
    press(browser, "Run now")
    reads(browser, "Run now: made due 1 waiting job", ".did")
    found = orders.job(FAILING).waiting
    assert found is None or found.retry_count > 0 or found.perform_in <= time.time()


def edit_one_and_delete_the_other(browser, visit, job_id, what):
    visit(f"/job?queue=sync_order&id={job_id}")
    press(browser, "Edit")
    box = browser.find_element("id", "value")
    box.clear()
    box.send_keys('{"status": ')
    press(browser, "Save")
    reads(browser, "value is invalid: expected JSON")
    box = browser.find_element("id", "value")
    assert box.get_attribute("value") == '{"status": '
    box.send_keys(END, '"<b>edited</b>"}')
    press(browser, "Save")
    reads(browser, "<b>edited</b>")
    press(browser, "Delete payload")
    reads(browser, f"This {what} is deleted")
    press(browser, "Delete payload")
    reads(browser, f"Delete payload: deleted 1 {what}", ".did")


def test_a_payload_is_edited_and_another_one_dropped(app, browser, visit, orders):
    for number in (1, 2):
        app.tasks["sync_order"].apply_async(("EDIT", {"n": number}), countdown=7200)
    edit_one_and_delete_the_other(browser, visit, "EDIT", "payload")
    assert [payload.value for payload in orders.job("EDIT").waiting.payloads] == [{"n": 2}]


def test_a_dead_payload_is_edited_and_another_one_dropped(app, browser, visit, orders):
    for number in (1, 2):
        app.tasks["sync_order"].apply_async(("DEAD-EDIT", {"n": number}), countdown=7200)
    orders.bury(["DEAD-EDIT"])
    edit_one_and_delete_the_other(browser, visit, "DEAD-EDIT", "dead payload")
    assert [payload.value for payload in orders.job("DEAD-EDIT").dead.payloads] == [{"n": 2}]


def test_an_id_is_paused_and_resumed(browser, visit, orders):
    visit("/job?queue=sync_order&id=SO-10009")
    press(browser, "Pause")
    reads(browser, "has been paused since", ".why")
    press(browser, "Resume")
    eventually(lambda: orders.job("SO-10009").waiting is None or not orders.job("SO-10009").waiting.paused)


def test_chosen_jobs_are_deleted(browser, visit, stock):
    before = stock.stats().length
    visit("/queue?queue=update_stock")
    for box in itertools.islice(browser.find_elements("css selector", "td.pick input"), 3):
        box.click()
    do(browser, "Delete", "Delete: 3 waiting jobs of queue update_stock?")
    reads(browser, "deleted 3 waiting jobs", ".did")
    assert stock.stats().length == before - 3


def test_all_of_a_page_are_chosen_at_once_and_buried(browser, visit, stock):
    visit("/queue?queue=update_stock&limit=4")
    browser.find_element("css selector", "th.pick input").click()
    do(browser, "Bury", "Bury: 4 waiting jobs of queue update_stock?")
    eventually(lambda: stock.stats().morgue_length == 4)


def test_the_dead_come_back_or_go(browser, visit, stock):
    dead = stock.stats().morgue_length
    visit("/queue?queue=update_stock&list=morgue")
    browser.find_element("css selector", "td.pick input").click()
    press(browser, "Requeue")
    reads(browser, "Requeue: requeued 1 dead job", ".did")
    assert stock.stats().morgue_length == dead - 1
    do(browser, "Delete all", "Delete all: 3 dead jobs of queue update_stock?")
    eventually(lambda: stock.stats().morgue_length == 0)


def test_all_run_now_and_the_operation_is_listed(browser, visit, stock):
    visit("/queue?queue=update_stock")
    do(browser, "Run all now", f"Run all now: {stock.stats().length} waiting jobs of queue update_stock?")
    reads(browser, "Run all now", ".did")
    assert stock.jobs("perform_in", minimum=time.time() + 60).items == ()
    visit("/operations")
    assert "Run all now" in text(browser)


def test_retries_are_buried_together(browser, visit, orders):
    visit(PAGES["retries"])
    do(browser, "Bury all", "Bury all:")
    eventually(lambda: orders.stats().morgue_length > 0)


def test_pages_work_without_javascript(browser, visit, app):
    """All but the live updates."""
    index = app.tasks["index_product"].ordered_queue
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        visit(PAGES["paused queue"])
        press(browser, "Resume")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    eventually(lambda: index.paused().queue is None)
