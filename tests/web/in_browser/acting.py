"""What somebody in front of the browser does and sees."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from celery_lowkiq.integration.queue import OrderedQueue
from tests.waiting import eventually
from tests.web.showcase import FAILING

PAGES = {
    "overview": "/",
    "queue": "/queue?queue=sync_order",
    "filtered": "/queue?queue=sync_order&state=scheduled&age=%3C1h&prefix=SO-1&minimum=1",
    "searched": "/queue?queue=sync_order&list=retries&state=scheduled&prefix=SO",
    "retries": "/queue?queue=sync_order&list=retries",
    "morgue": "/queue?queue=send_invoice&list=morgue",
    "processing": "/queue?queue=sync_order&list=processing",
    "shards": "/queue?queue=sync_order&list=shards",
    "paused ids": "/queue?queue=sync_order&list=paused",
    "paused queue": "/queue?queue=index_product",
    "job": f"/job?queue=sync_order&id={FAILING}",
    "dead job": "/job?queue=send_invoice&id=INV-9000",
    "unknown job": "/job?queue=sync_order&id=nobody",
    "nodes": "/nodes",
    "trackers": "/trackers",
    "operations": "/operations",
    "doctor": "/doctor",
    "audit log": "/audit",
    "failures": "/failures?queue=sync_order",
    "failures that match": "/failures?queue=sync_order&error=*",
    "error": "/queue?queue=nobody",
}
#: As WebDriver spells the keys.
TAB, ENTER, ESCAPE, END = "\ue004", "\ue007", "\ue00c", "\ue010"
#: The stop that has the focus: its words, whether it is framed, and whether nothing covers it.
FOCUSED = """
    const one = document.activeElement, box = one.getBoundingClientRect();
    const top = document.elementFromPoint(box.left + box.width / 2, box.top + Math.min(box.height / 2, 12));
    return [one.innerText || one.getAttribute("aria-label") || one.name || "",
            getComputedStyle(one).outlineStyle !== "none", one.contains(top) || (top && top.contains(one))];
"""
SERIOUS = ("serious", "critical")


def text(browser: Any, selector: str = "main") -> str:
    return str(
        browser.execute_script("return document.querySelector(arguments[0])?.innerText || ''", selector)
    )


def press(browser: Any, label: str, within: str = "main") -> None:
    path = f"//{within}//button[normalize-space()='{label}']"
    browser.find_element("xpath", path).click()


def reads(browser: Any, words: str, selector: str = "main") -> None:
    """Waits until a part of the page has the words."""
    try:
        eventually(lambda: words in text(browser, selector))
    except AssertionError:
        raise AssertionError(f"{words!r} is not in {selector}:\n{text(browser, 'body')}") from None


def do(browser: Any, label: str, question: str, within: str = "main") -> None:
    """Press a button, and the one of the question that comes then."""
    press(browser, label, within)
    reads(browser, question, "h1")
    press(browser, label)


def leave(browser: Any) -> None:
    """Before its dashboard ends: the page would ask it for news, and complain."""
    browser.get("about:blank")


def violations(browser: Any) -> list[Any]:
    """What axe finds serious."""
    source = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    browser.execute_script(source)
    found = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
    return [
        (one["id"], [node["html"] for node in one.get("nodes", ())])
        for one in found
        if one["impact"] in SERIOUS
    ]


def due_later(queue: OrderedQueue, now: float) -> int:
    """How many jobs wait for a time that is more than a minute away; at most 1000 are counted."""
    return len(queue.jobs("perform_in", minimum=now + 60, limit=1000).items)


def go_to(browser: Any, keys: Callable[..., None], words: str) -> None:
    """With the tab key; every stop on the way can be seen."""
    passed: list[str] = []
    while not (passed and passed[-1].startswith(words)):
        keys(TAB)
        stop, framed, uncovered = browser.execute_script(FOCUSED)
        assert framed, stop
        assert uncovered, stop
        passed.append(stop)
        assert len(passed) < 100, passed
