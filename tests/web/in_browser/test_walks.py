"""Every form of every page is walked: what it does to jobs is seen on the page and in the store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from typing import NamedTuple
from uuid import uuid4

import pytest
from starlette.routing import Route

from celery_lowkiq import track
from celery_lowkiq.integration.actions import ACTIONS
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.store import listings
from celery_lowkiq.web import make_app
from tests.waiting import eventually
from tests.web.in_browser import test_migration, test_operations, test_pages
from tests.web.in_browser.acting import leave, press, reads, text, violations
from tests.web.migrating import flipped
from tests.web.serving import served
from tests.web.showcase import FAILING, LOOKED_AT

pytestmark = pytest.mark.browser


class Walk(NamedTuple):
    """``page``: a listing, or the page of a job; ``begins`` and ``ends``: where jobs are before and after."""

    page: str
    action: str
    begins: str
    ends: str


#: Buttons for jobs: chosen ones of a listing, all of a listing, and the one of a job's page.
WALKS = (
    Walk("jobs", "run_now", "waiting", "ran"),
    Walk("jobs", "pause_ids", "waiting", "paused"),
    Walk("jobs", "bury", "waiting", "dead"),
    Walk("jobs", "delete", "waiting", "gone"),
    Walk("jobs", "run_now_all", "waiting", "ran"),
    Walk("retries", "run_now", "failed", "failed again"),
    Walk("retries", "bury", "failed", "dead"),
    Walk("retries", "delete", "failed", "gone"),
    Walk("retries", "bury_failed", "failed", "dead"),
    Walk("retries", "delete_failed", "failed", "gone"),
    Walk("morgue", "requeue", "dead", "ran"),
    Walk("morgue", "requeue_forced", "dead", "ran"),
    Walk("morgue", "requeue_all_forced", "dead", "ran"),
    Walk("morgue", "delete_dead", "dead", "gone"),
    Walk("morgue", "requeue_all", "dead", "ran"),
    Walk("morgue", "delete_dead_all", "dead", "gone"),
    Walk("morgue", "hold", "dead", "held"),
    Walk("held", "requeue", "held", "ran"),
    Walk("held", "go_on", "held", "dead"),
    Walk("/failures", "requeue_matching", "dead", "ran"),
    Walk("/failures", "delete_dead_matching", "dead", "gone"),
    Walk("/failures", "bury_matching", "failed", "dead"),
    Walk("/failures", "delete_matching", "failed", "gone"),
    Walk("paused", "resume_ids", "paused", "waiting"),
    Walk("paused", "resume_all_ids", "paused", "waiting"),
    Walk("job", "run_now", "waiting", "ran"),
    Walk("job", "bury", "waiting", "dead"),
    Walk("job", "delete", "waiting", "gone"),
    Walk("job", "requeue", "dead", "ran"),
    Walk("job", "requeue_forced", "dead", "ran"),
    Walk("job", "delete_dead", "dead", "gone"),
    Walk("job", "hold", "dead", "held"),
    Walk("job", "go_on", "held", "dead"),
)
#: Other forms, and the test that walks each.
ELSEWHERE: dict[tuple[str, str], Callable[..., None]] = {
    ("queue", "pause"): test_pages.test_a_queue_is_paused_and_goes_on,
    ("queue", "resume"): test_pages.test_a_queue_is_paused_and_goes_on,
    ("shards", "pause_shard"): test_pages.test_a_shard_is_paused_and_goes_on,
    ("shards", "resume_shard"): test_pages.test_a_shard_is_paused_and_goes_on,
    ("shards", "reshard"): test_migration.test_a_queue_is_resharded,
    ("queue", "pause_migration"): test_migration.test_a_move_is_paused_resumed_and_aborted,
    ("queue", "resume_migration"): test_migration.test_a_move_is_paused_resumed_and_aborted,
    ("queue", "abort_migration"): test_migration.test_a_move_is_paused_resumed_and_aborted,
    ("job", "pause_ids"): test_pages.test_an_id_is_paused_and_resumed,
    ("job", "resume_ids"): test_pages.test_an_id_is_paused_and_resumed,
    ("job", "/job"): test_pages.test_a_payload_is_edited_and_another_one_dropped,
    ("job", "edit_payload"): test_pages.test_a_payload_is_edited_and_another_one_dropped,
    ("job", "delete_payload"): test_pages.test_a_payload_is_edited_and_another_one_dropped,
    ("job", "edit_dead_payload"): test_pages.test_a_dead_payload_is_edited_and_another_one_dropped,
    ("job", "delete_dead_payload"): test_pages.test_a_dead_payload_is_edited_and_another_one_dropped,
    ("/tracker", "/tracker/cancel"): test_pages.test_a_tracked_group_is_watched_and_cancelled,
    ("/operation", "/cancel"): test_operations.test_a_cancelled_operation_says_what_was_done,
}

LISTINGS = ("jobs", "retries", "morgue", "processing", "shards", "paused", "held")
FOR_PROGRAMS = ("/api/", "/healthz", "/readyz")


def make_jobs(app, state, name=""):
    """Two jobs of ids of their own in that state, and their queue."""
    failing = state == "failed"
    # A queue that drops payloads holds nothing.
    task = app.tasks[name or {"failed": "sync_order", "held": "send_invoice"}.get(state, "update_stock")]
    queue, prefix = task.ordered_queue, FAILING if failing else "W"
    fresh = (f"{prefix}-{uuid4().hex[:8]}" for _ in count())
    # A paused shard would not let them fail.
    ids = list(islice((one for one in fresh if queue.shard_of(one) not in queue.paused().shards), 2))
    for job_id in ids:
        task.apply_async((job_id, {"version": 1}), **({} if failing else {"countdown": 7200}))
    if state == "paused":
        queue.pause_ids(ids)
    if state in ("dead", "held"):
        queue.bury(ids)
    if state == "held":
        queue.hold(ids)
    eventually(lambda: [place(queue, job_id) for job_id in ids] == [state, state], 120)
    return queue, ids


def place(queue, job_id):
    found = queue.job(job_id)
    if found.waiting is None:
        if found.dead:
            return "dead" if found.dead.held_since is None else "held"
        return "running" if found.processing else "gone"
    if found.waiting.retry_count > LOOKED_AT:
        return "failed again"
    if found.waiting.retry_count == LOOKED_AT:
        return "failed"
    return "paused" if found.waiting.paused else "waiting"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: f"{walk.page}-{walk.action}")
def test_a_form_does_what_it_says(app, browser, visit, walk):
    queue, ids = make_jobs(app, walk.begins, "send_invoice" if walk.ends == "held" else "")
    action, processed = ACTIONS[walk.action], queue.stats().processed
    changed = ids[:1] if walk.page == "job" else ids
    if walk.page == "job":
        visit(f"/job?queue={queue.name}&id={ids[0]}")
    elif walk.page == "/failures":
        visit(f"/failures?queue={queue.name}&error=*")
    else:
        visit(f"/queue?queue={queue.name}&list={walk.page}&limit=500")
    if walk.page != "job" and action.scope.ids:
        for job_id in ids:
            browser.find_element("css selector", f"input[value='{job_id}']").click()
    press(browser, action.label, "section")
    if action.asks:
        reads(browser, f"{action.label}: ", "h1")
        assert action.effect in text(browser)
        assert violations(browser) == []
        press(browser, action.label)
    reads(
        browser,
        f"{action.label}: {action.done} "
        + ("" if action.scope.total or action.optional else f"{len(changed)} "),
        ".did",
    )
    ends = "gone" if walk.ends == "ran" else walk.ends
    # A slow job of the showcase may be on the same lane, twice.
    eventually(lambda: {place(queue, job_id) for job_id in changed} == {ends}, 120)
    if walk.ends == "ran":
        eventually(lambda: queue.stats().processed >= processed + len(changed))


def forms(browser):
    """The page's posting forms: the kind of page, and what each button would do."""
    found = browser.execute_script("""
        const url = new URL(location.href);
        const listing = url.pathname === "/queue" ? url.searchParams.get("list") || "jobs" : url.pathname;
        return [...document.querySelectorAll("form[method=post] button:not([type=button])")].map((button) => {
          const fields = new FormData(button.form, button);
          const page = listing === "/job" ? "job" : button.closest(".head") ? "queue" : listing;
          return [page, fields.get("action") || button.form.getAttribute("action").split("?")[0]];
        });
    """)
    return [tuple(form) for form in found]


def pages_with_forms(app):
    """Addresses that show every form but those of a running operation."""
    shop = {state: make_jobs(app, state)[1][0] for state in ("paused", "dead", "held", "failed", "waiting")}
    with track("to be cancelled", app) as tracker:
        app.tasks["update_stock"].apply_async(("TRACKED", {}), countdown=7200, tracker=tracker)
    queues = Inspector(app, raw=True).queues()
    stock = queues["update_stock"]
    stock.pause(shard=0)
    queues["index_product"].pause()
    for listing in LISTINGS:
        yield f"/queue?queue=update_stock&list={listing}"
    yield "/queue?queue=sync_order&list=retries"
    yield from (f"/queue?queue=send_invoice&list={listing}" for listing in ("morgue", "held"))
    yield f"/job?queue=send_invoice&id={shop['held']}"
    yield f"/job?queue=send_invoice&id={make_jobs(app, 'dead', 'send_invoice')[1][0]}"
    yield from (f"/failures?queue={queue}&error=*" for queue in ("update_stock", "sync_order"))
    yield "/queue?queue=index_product"
    for state in ("waiting", "paused", "dead"):
        yield f"/job?queue=update_stock&id={shop[state]}"
    yield f"/tracker?id={tracker.id}"
    yield from ("/", "/search?id=nobody", "/nodes", "/doctor", "/operations", "/audit", "/trackers")
    stock.resume(shard=0)


def forms_of_a_move(app, browser):
    """While it goes on, and while it is paused."""
    flipped(app, queue := app.tasks["sync_order"].ordered_queue, 7)
    with served(app) as url:
        for _ in range(2):
            browser.get(f"{url}/queue?queue=sync_order")
            yield from forms(browser)
            queue.pause_migration()
        leave(browser)


def test_no_form_and_no_page_is_forgotten(app, idle_shop, browser, visit, watched):
    """What can be pressed stands in the tables above, and what stands there can be pressed."""
    found, seen = set(forms(browser)), {"/operation"}
    for path in pages_with_forms(app):
        visit(path)
        found |= set(forms(browser))
        if path.startswith("/job") and ("job", "/job") in forms(browser):
            press(browser, "Edit")
            eventually(lambda: browser.find_elements("id", "value"))
            found |= set(forms(browser))
        seen.add(path.partition("?")[0])
    found |= set(forms_of_a_move(idle_shop, browser))
    assert found == {(walk.page, walk.action) for walk in WALKS} | set(ELSEWHERE)
    # The shop signs nothing, so there is nothing to sign.
    assert {action for _, action in found} >= set(ACTIONS) - {"sign_dead"}
    routes = [route for route in make_app(app).routes if isinstance(route, Route)]
    ours = [(route.path, route.methods) for route in routes if not route.path.startswith(FOR_PROGRAMS)]
    assert {path for path, methods in ours if "GET" in methods} == seen
    changes = {action for _, action in found if action.startswith("/")} | {"/change"}
    assert {path for path, methods in ours if "POST" in methods} == changes


def test_nothing_can_be_pressed_where_nothing_may_be_changed(app, browser, contented):
    with served(app, read_only=True) as url:
        for path in pages_with_forms(app):
            browser.get(url + path)
            assert forms(browser) == [], path
            assert "read-only" in text(browser, "header")
            assert not browser.execute_script("return document.querySelector('.pick')")
        leave(browser)


def test_a_listing_is_searched(app, browser, visit):
    _, (one, other) = make_jobs(app, "waiting")
    visit("/queue?queue=update_stock&by=id")
    browser.find_element("name", "prefix").send_keys(one)
    press(browser, "Search")
    eventually(lambda: one in (found := text(browser, "#jobs")) and other not in found)
    assert "by=id" in browser.current_url


def choose(browser, name, words):
    """Choose an option of a select by the beginning of its text."""
    path = f"//select[@name='{name}']/option[starts-with(normalize-space(), '{words}')]"
    browser.find_element("xpath", path).click()


def test_filters_combine_and_stay_in_the_address(app, browser, visit):
    """Each control is used: states, prefix, age, failure, sort and range; then all is cleared."""
    _, (one, other) = make_jobs(app, "failed")
    visit("/queue?queue=sync_order&list=retries")
    browser.find_element("link text", "scheduled").click()
    assert text(browser, ".states [aria-current]") == "scheduled"
    browser.find_element("name", "prefix").send_keys(one)
    choose(browser, "failure", "shop.CarrierUnavailable")
    choose(browser, "age", "any time")
    browser.find_element("css selector", "summary").click()
    browser.find_element("name", "minimum").send_keys("1")
    browser.find_element("name", "maximum").send_keys("8")
    browser.find_element("name", "reverse").click()
    press(browser, "Search")
    # The page before has both.
    eventually(lambda: other not in text(browser, "#jobs"))
    reads(browser, one, "#jobs")
    reads(browser, "Searched ", "#searched")
    for part in ("list=retries", "state=scheduled", f"prefix={one}", "failure=", "minimum=1", "reverse=1"):
        assert part in browser.current_url
    assert violations(browser) == []
    choose(browser, "age", "over 1 h")
    press(browser, "Search")
    reads(browser, "Nothing matches")
    assert "age=%3E1h" in browser.current_url
    browser.find_element("link text", "Clear").click()
    reads(browser, other, "#jobs")
    browser.find_element("partial link text", "CarrierUnavailable").click()
    assert "failure=" in browser.current_url


def test_a_search_goes_on_from_where_it_came(app, browser, visit, monkeypatch):
    monkeypatch.setattr(listings, "SEARCHED", 400)
    monkeypatch.setattr(listings, "STEP", 100)
    visit("/queue?queue=sync_order&prefix=nothing")
    reads(browser, "Searched 400 of ", "#searched")
    browser.find_element("link text", "Search on").click()
    eventually(lambda: (said := text(browser, "#searched")) and len({*said.split()[1::2][:2]}) == 1)
    browser.find_element("link text", "First page").click()
    reads(browser, "Searched 400 of ", "#searched")
