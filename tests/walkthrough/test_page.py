"""The page of the walkthrough, and the traces that it plays."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import chromium, complaints
from tests.waiting import eventually
from tests.web.in_browser.acting import text, violations

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs" / "walkthrough"
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from walkthrough import ORDER, page  # noqa: E402 - an extension of Sphinx, which is on no path

NAMES = {"merge", "failure", "kill", "twice", "hold", "reshard"}
MOST_BYTES = 20_000
MOST_LINES = 300


def trace(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SOURCE / "traces" / f"{name}.json").read_text())
    return found


def stale(side: dict[str, Any]) -> int:
    """Writes of a version after a newer one."""
    newest: dict[str, int] = {}
    count = 0
    for event in side["events"]:
        if event["e"] == "write":
            count += event["v"] < newest.get(event["id"], 0)
            newest[event["id"]] = max(event["v"], newest.get(event["id"], 0))
    return count


def test_all_traces_are_on_the_page():
    assert set(ORDER) == NAMES == {path.stem for path in (SOURCE / "traces").iterdir()}


@pytest.mark.parametrize("name", ORDER)
class TestTraces:
    def test_is_small(self, name):
        assert (SOURCE / "traces" / f"{name}.json").stat().st_size <= MOST_BYTES

    def test_the_ordered_side_is_right_and_the_plain_one_is_not(self, name):
        """What the page is there to show; a new recording that shows something else is not committed."""
        found = trace(name)
        plain, ordered = found["sides"]["plain"], found["sides"]["ordered"]
        assert ordered["rows"] == found["right"]
        assert stale(ordered) == 0
        assert plain["rows"] != found["right"] or stale(plain)

    def test_both_sides_got_the_same_calls(self, name):
        sides = trace(name)["sides"].values()
        plain, ordered = (
            [(event["id"], event["v"], event["s"]) for event in side["events"] if event["e"] == "call"]
            for side in sides
        )
        assert plain == ordered

    def test_shows_the_code_that_ran(self, name):
        for side, code in trace(name)["code"].items():
            assert code in (ROOT / "tests" / "walkthrough" / f"{side}.py").read_text()


class TestSource:
    def test_the_script_is_short(self):
        assert len((SOURCE / "page.js").read_text().splitlines()) <= MOST_LINES

    def test_nothing_is_loaded_and_nothing_is_written_as_html(self):
        whole = page()
        assert not re.search(r"<link|\ssrc=|url\((?!data:)|@import|fetch\(|https?://", whole)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\son[a-z]+=|eval\(", whole)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page as a file, as somebody opens it offline."""
    file = tmp_path_factory.mktemp("built") / "live.html"
    file.write_text(page(), encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def visit(browser: Any, site: str) -> Iterator[Any]:
    """Opens a trace at a time: ``visit("merge@900")``; without motion unless asked for."""

    def visit(address: str, scheme: str = "light", motion: str = "reduce") -> None:
        features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
        media = {"features": [{"name": name, "value": value} for name, value in features]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get("about:blank")
        browser.get(f"{site}#{address}")

    complaints(browser)
    yield visit
    assert complaints(browser) == []


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def clock(browser: Any) -> float:
    return float(text(browser, "#clock").removesuffix(" s"))


RIGHT, LEFT, HOME, END = "\ue014", "\ue012", "\ue011", "\ue010"


@pytest.mark.browser
class TestInBrowser:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("name", ORDER)
    def test_axe_finds_nothing(self, browser, visit, name, scheme):
        visit(f"{name}@99999", scheme)
        assert violations(browser) == []
        visit(f"{name}@1000", scheme)
        assert violations(browser) == []

    @pytest.mark.parametrize("name", ORDER)
    def test_a_phone_shows_it_without_moving_it_sideways(self, browser, visit, name):
        size = {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            visit(f"{name}@1000")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    @pytest.mark.parametrize("name", ORDER)
    def test_each_trace_ends_with_its_verdict(self, browser, visit, name):
        visit(f"{name}@0")
        assert "In order so far" in text(browser, ".plain .verdict")
        press(browser, END)
        assert text(browser, ".ordered .verdict").startswith("Right, all the time.")
        assert text(browser, ".plain .verdict").startswith(
            ("Wrong at the end.", "Right at the end, by luck.")
        )
        rows = {
            row.partition(" ")[2].split("\n")[0].split("\t")[0]: row
            for row in text(browser, ".ordered table").splitlines()
        }
        for order, status in trace(name)["right"].items():
            assert any(order in key and status in row for key, row in rows.items()), rows

    def test_keys_step_through_all_events_and_back(self, browser, visit):
        visit("merge@0")
        seen = [clock(browser)]
        while len(seen) < 200 and "all the time" not in text(browser, ".ordered .verdict"):
            press(browser, RIGHT)
            seen.append(clock(browser))
        assert seen == sorted(seen)
        assert len(seen) > 20
        press(browser, LEFT)
        assert clock(browser) == seen[-2]
        press(browser, HOME)
        assert clock(browser) == 0

    def test_space_plays_to_the_end_and_pauses(self, browser, visit):
        visit("merge@0", motion="no-preference")
        browser.execute_script("document.getElementById('speed').value = '1'")
        press(browser, " ")
        eventually(lambda: clock(browser) > 0)
        press(browser, " ")
        stopped = clock(browser)
        assert browser.find_element("id", "play").get_attribute("aria-label") == "Play"
        press(browser, " ")
        eventually(lambda: text(browser, ".plain .verdict").startswith("Wrong at the end."))
        assert clock(browser) > stopped

    def test_it_begins_by_itself_but_not_where_motion_is_reduced(self, browser, visit):
        visit("failure", motion="no-preference")
        eventually(lambda: clock(browser) > 0)
        visit("failure")
        assert browser.find_element("id", "play").get_attribute("aria-label") == "Play"
        assert clock(browser) == 0

    def test_the_slider_scrubs_and_the_address_follows(self, browser, visit):
        visit("kill@0")
        move = (
            "const s = document.getElementById('time'); s.value = 1800; s.dispatchEvent(new Event('input'))"
        )
        browser.execute_script(move)
        assert clock(browser) == 1.8
        assert browser.current_url.endswith("#kill@1800")
        assert "worker killed" in text(browser, ".ordered .chart")
        assert "kept until its lease ends" in text(browser, ".ordered .shelf")

    def test_the_chart_scrubs(self, browser, visit):
        visit("merge@0")
        browser.find_element("css selector", ".plain .chart").click()
        assert clock(browser) > 0.5

    def test_merged_payloads_wait_as_one_job(self, browser, visit):
        visit("merge@850")
        assert text(browser, ".ordered .shelf").split() == ["42", "v2", "v3", "v4"]

    def test_a_digit_and_a_tab_choose_a_trace(self, browser, visit):
        visit("merge@0")
        press(browser, "5")
        eventually(lambda: text(browser, "h2") == "A payload dies")
        browser.find_element("css selector", "nav button[value=kill]").click()
        eventually(lambda: text(browser, "h2") == "kill -9")
        assert text(browser, "nav [aria-current=true]").split() == ["3", "kill", "-9"]

    def test_a_print_shows_the_end(self, browser, visit):
        visit("hold@0")
        browser.execute_cdp_cmd("Page.printToPDF", {})
        assert text(browser, ".plain .verdict").startswith("Wrong at the end.")
