"""The timeline, the picker of times, and the explanations of words, as somebody uses them."""

from __future__ import annotations

import re
import time
from uuid import uuid4

import pytest
import redis

from celery_lowkiq.store.keys import AUDIT_KEY, shard_keys
from tests.waiting import eventually
from tests.web.in_browser.acting import ENTER, ESCAPE, PAGES, go_to, reads, text, violations

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
RELATIVE = r"now|in .+|.+ ago"
#: Opens each explanation in turn; returns those that do not show, or not all of them.
UNSEEN = """
    const hidden = [];
    for (const word of document.querySelectorAll("button.term")) {
        word.scrollIntoView({ block: "center" });
        word.click();
        const one = document.getElementById(word.getAttribute("popovertarget"));
        const box = one.getBoundingClientRect();
        const inside = box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight;
        const said = one.matches(":popover-open") && one.innerText.includes("\\n");
        if (!said || !inside) hidden.push(word.innerText);
        one.hidePopover();
    }
    return [document.querySelectorAll("button.term").length, hidden];
"""


@pytest.fixture
def phone(browser):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture
def berlin(browser):
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    yield
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    browser.execute_script("localStorage.removeItem('lowkiq-times')")


def choose(browser, label):
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("css selector", ".times select")).select_by_visible_text(label)


def due(browser):
    """The times of the timeline: their texts and titles."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#timeline time')].map((one) => [one.textContent, one.title])"
    )


@pytest.fixture
def tried(app, server):
    """The page of a job with five tries, four of them similar and the last one 40 s ago; nobody changed its
    queue meanwhile.
    """
    task, job_id, now = app.tasks["sync_order"], uuid4().hex, time.time()
    task.apply_async((job_id, {"version": 1}), countdown=600)
    lines = [f"{now - 640:.6f}\t0\tnode-1\tKeyError: 'sku'"]
    lines += [f"{now - 640 + 150 * n:.6f}\t{n}\tnode-1\tValueError: order {n}" for n in range(1, 5)]
    keys = shard_keys(task.queue_spec.shard_of(job_id))
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.delete(AUDIT_KEY)
        client.zadd(keys["failed"], {job_id: 5})
        client.hset(keys["errors"], job_id, "ValueError: order 4")
        client.hset(keys["tries"], job_id, "\n".join(lines))
    return f"/job?queue=sync_order&id={job_id}"


def test_the_fold_of_similar_tries_opens_and_stays_open(browser, visit, keys, tried):
    visit(tried)
    assert re.search(r"Retry 6 of 8\s+in (9|10) min", text(browser, "#timeline"))
    assert "order 3" not in text(browser, "#timeline")
    go_to(browser, keys, "3 similar earlier tries")
    keys(ENTER)
    assert text(browser, ".timeline .timeline").count("on node-1") == 3
    assert violations(browser) == []
    browser.execute_script("document.activeElement.blur()")
    before = text(browser, "#timeline")
    eventually(lambda: text(browser, "#timeline") != before)
    assert text(browser, ".timeline .timeline").count("on node-1") == 3


def test_times_between_events_are_drawn_to_scale(browser, visit, tried):
    visit(tried)
    lines = browser.find_elements("css selector", "#timeline > section > .timeline > .gap svg")
    # 10 min, 40 s, which would be too short, and 150 s twice.
    assert [line.size["height"] for line in lines] == [pytest.approx(one, abs=2) for one in (96, 18, 24, 24)]
    browser.find_element("css selector", "#timeline summary").click()
    (line, _) = browser.find_elements("css selector", ".timeline .timeline .gap svg")
    assert line.size["height"] == pytest.approx(24, abs=2)


def test_times_are_chosen_and_kept(browser, visit, berlin):
    visit(PAGES["dead job"])
    written = due(browser)
    assert all(re.fullmatch(RELATIVE, one) and title.endswith(" UTC") for one, title in written)
    choose(browser, "UTC")
    assert [one for one, _ in due(browser)] == [title for _, title in written]
    choose(browser, "local, Europe/Berlin")
    local = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d CES?T"
    assert all(re.fullmatch(local, one) and title == one for one, title in due(browser))
    assert re.search(rf"since {local} \(", text(browser, ".why"))
    before = text(browser, ".why")
    eventually(lambda: text(browser, ".why") != before)
    assert re.search(rf"since {local} \(", text(browser, ".why"))
    visit(PAGES["queue"])
    assert re.search(local, text(browser, "#jobs"))
    assert re.match(r"\d\d:\d\d", text(browser, ".axis"))
    assert violations(browser) == []
    choose(browser, "relative")
    assert not re.search(local, text(browser, "#jobs"))
    assert text(browser, ".axis").startswith("an hour ago")


def test_relative_times_are_those_of_the_server(browser, visit):
    """After another choice, the browser counts itself."""
    visit(PAGES["dead job"])
    choose(browser, "UTC")
    browser.execute_script(
        "const one = document.createElement('p'), now = Date.now() / 1000;"
        "one.id = 'counted';"
        "one.innerHTML = [-7300, -59, 3725, 90061].map((ago) =>"
        "  `<time datetime='${new Date((now + ago + 0.2) * 1000).toISOString()}'></time>`).join('|');"
        "document.body.append(one);"
    )
    choose(browser, "relative")
    assert text(browser, "#counted").split("|") == ["2 h 1 min ago", "59 s ago", "in 1 h 2 min", "in 1 d 1 h"]
    assert all(re.fullmatch(RELATIVE, one) for one, _ in due(browser))
    assert browser.execute_script("return localStorage.getItem('lowkiq-times')") is None


def test_the_chart_tells_its_time_in_the_zone(browser, visit, berlin):
    from selenium.webdriver import ActionChains

    for label, zone in (("UTC", r"UTC"), ("local, Europe/Berlin", "CES?T")):
        visit("/")
        choose(browser, label)
        ActionChains(browser).move_to_element(browser.find_element("css selector", "svg.chart")).perform()
        eventually(
            lambda zone=zone: re.match(rf"\d\d:\d\d {zone} · [\d,]+ processed", text(browser, "#chart-note"))
        )


@pytest.mark.parametrize("page", PAGES)
def test_each_word_is_explained_within_the_window(browser, visit, page):
    visit(PAGES[page])
    assert browser.execute_script(UNSEEN)[1] == []


def test_each_word_is_explained_on_a_phone(browser, visit, phone):
    for page in ("overview", "shards", "job"):
        visit(PAGES[page])
        count, unseen = browser.execute_script(UNSEEN)
        assert count > 3
        assert unseen == []


def test_a_word_is_explained_by_touch(browser, visit, phone):
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        visit("/")
        where = browser.execute_script("""
            const word = document.querySelector("#tiles [popovertarget=term-lag]");
            const box = word.getBoundingClientRect();
            return {x: box.left + box.width / 2, y: box.top + box.height / 2};
        """)
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [where]})
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        reads(browser, "how long the oldest claimable job is due", "#term-lag:popover-open")
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_a_word_is_explained_by_the_keyboard(browser, visit, keys):
    visit("/")
    go_to(browser, keys, "Lag")
    keys(ENTER)
    reads(browser, "how long the oldest claimable job is due", "#term-lag:popover-open")
    assert violations(browser) == []
    keys(ESCAPE)
    eventually(lambda: not browser.execute_script("return document.querySelector(':popover-open')"))
    assert browser.execute_script("return document.activeElement.innerText") == "Lag"


def test_an_explanation_stays_while_the_page_is_kept_up_to_date(app, browser, visit):
    visit("/queue?queue=update_stock")
    before = text(browser, "#tabs")
    browser.find_element("css selector", "#tiles button.term").click()
    app.tasks["update_stock"].apply_async(("TERM-1", {"delta": 1}), countdown=7200)
    eventually(lambda: text(browser, "#tabs") != before)
    assert "over the last minute" in text(browser, ":popover-open")


def test_an_empty_page_leads_on(browser, visit):
    visit(PAGES["unknown job"])
    browser.find_element("link text", "Search all queues for it").click()
    reads(browser, "No job has this id")
    browser.find_element("link text", "To the queues").click()
    reads(browser, "Overview", "h1")
