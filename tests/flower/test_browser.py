"""Flower's pages, as somebody sees them."""

from __future__ import annotations

import pytest

from tests.browsing import chromium, complaints
from tests.flower.conftest import tasks
from tests.waiting import eventually

pytestmark = pytest.mark.browser

EVIL = "<script>document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def visit(browser, site):
    """Opens a page; afterwards nothing must have gone wrong in the browser."""
    browser.get(site.with_user + "/ordered")
    complaints(browser)
    yield lambda path: browser.get(site.url + path)
    assert complaints(browser) == []


@pytest.fixture
def outcome(app, site):
    task = app.tasks["outcome"]
    for job_id in ("dead-1", EVIL):
        task.delay(job_id, "fail")
    eventually(lambda: task.ordered_queue.stats().morgue_length == 2)
    yield task.ordered_queue
    task.ordered_queue.resume()
    eventually(lambda: task.ordered_queue.stats().length == task.ordered_queue.stats().busy == 0)
    task.ordered_queue.delete_dead_all()


def reads(browser, words, selector="main"):
    """Waits until a part of the page has the words."""
    found = "return document.querySelector(arguments[0])?.innerText || ''"
    eventually(lambda: words in browser.execute_script(found, selector))


def press(browser, label):
    browser.find_element("xpath", f"//button[normalize-space()='{label}']").click()


def test_the_tasks_page_lists_a_run(app, site, browser, visit):
    sent = app.tasks["record"].delay("seen-in-browser", "x")
    eventually(lambda: sent.id in {task["uuid"] for task in tasks(site) if task["state"] == "SUCCESS"})
    visit("/tasks")
    reads(browser, "record", "#tasks-table")
    reads(browser, "SUCCESS", "#tasks-table")
    visit(f"/task/{sent.id}")
    reads(browser, "'seen-in-browser' (1): ['x']")


def test_the_workers_page_shows_its_lanes(browser, visit):
    visit("/")
    reads(browser, "w0@test")
    visit("/worker/w0@test")
    assert "lane-0" in browser.page_source
    assert "outcome" in browser.page_source


def test_the_tab_leads_to_a_queue_whose_dead_job_is_queued_up_again(browser, visit, outcome):
    failed = outcome.stats().failed
    visit("/tasks")
    browser.find_element("link text", "Ordered queues").click()
    browser.find_element("link text", "outcome").click()
    reads(browser, "dead-1", "#morgue-table")
    browser.find_element("xpath", "//tr[contains(., 'dead-1')]//button").click()
    reads(browser, "Requeued 1 dead job of queue outcome")
    eventually(lambda: outcome.stats().failed > failed)


def test_a_queue_is_paused_and_resumed(browser, visit, outcome):
    visit("/ordered/queue?queue=outcome")
    press(browser, "Pause")
    reads(browser, "Paused queue outcome")
    press(browser, "Requeue all")
    reads(browser, "2 waiting")
    press(browser, "Run all now")
    reads(browser, "Made due")
    press(browser, "Resume")
    reads(browser, "Resumed queue outcome")
    assert outcome.paused().queue is None


def test_what_comes_from_outside_is_not_run(browser, visit, outcome):
    visit("/ordered/queue?queue=outcome")
    reads(browser, EVIL, "#morgue-table")
    assert browser.title == "outcome · Flower"
