"""What the pages show."""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.health import Hint
from celery_lowkiq.rules.models import Disposition, Settlement
from celery_lowkiq.rules.text import TRACEBACK
from celery_lowkiq.rules.views import Counters, Stats
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.node_reports import sample_call

PAGES = [
    "/",
    "/doctor",
    "/queue?queue=record",
    "/queue?queue=record&list=retries",
    "/queue?queue=record&list=morgue",
    "/queue?queue=record&list=processing",
    "/job?queue=record&id=42",
    "/failures?queue=record",
    "/failures?queue=record&failure=0123456789abcdef&error=ValueError&since=2h",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_on_an_empty_queue(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_overview_shows_each_queue_with_its_counts(browser, app):
    app.tasks["record"].delay("42", "x")
    text = browser.get("/").text
    assert 'href="/queue?queue=record"' in text
    assert 'href="/queue?queue=outcome"' in text


def test_a_tile_of_the_overview_leads_to_its_jobs(browser, app):
    """To the only queue that has such jobs, or to the list of queues."""
    assert browser.get("/").text.count('<dd><a href="#queues-title">') == 4
    app.tasks["record"].apply_async(("42", "x"), countdown=1e6)
    assert '<dd><a href="/queue?queue=record&amp;list=jobs">1</a></dd>' in browser.get("/").text
    app.tasks["outcome"].apply_async(("42", "x"), countdown=1e6)
    assert '<dd><a href="#queues-title">2</a></dd>' in browser.get("/").text


def test_the_overview_shows_other_queues_beside_a_damaged_one(browser, app):
    """O6: a key of another type made an error of the whole page, and of the figures of the API."""
    app.tasks["outcome"].delay("1", "x")
    (shard, *_) = app.tasks["record"].queue_spec.shard_refs()
    context_of(app).store.client.servers.redis.set(shard_keys(shard)["due"], "planted")
    text = browser.get("/").text
    assert f"shard {shard} is damaged: " in text
    assert 'href="/queue?queue=outcome"' in text
    found = browser.get("/api/v1/queues").json()
    assert "outcome" in [queue["name"] for queue in found["queues"]]
    assert list(found["damaged"]) == ["record"]


def test_an_id_with_a_backlog_is_on_the_overview(browser, app):
    app.tasks["record"].perform_async([{"id": "42", "payload": n} for n in range(1001)])
    text = re.sub("<[^>]+>", "", browser.get("/").text)
    assert "record has 1,001 waiting calls of id 42" in text
    (found,) = [one for one in browser.get("/api/v1/queues").json()["queues"] if one["name"] == "record"]
    assert (found["stats"]["length"], found["stats"]["calls"]) == (1, 1001)
    assert found["stats"]["busiest"] == [{"queue": "record", "id": "42", "calls": 1001}]


def test_held_ids_are_on_the_overview_and_can_be_requeued_from_their_listing(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=100)
    queue = app.tasks["record"].ordered_queue
    link = 'href="/queue?queue=record&amp;list=held"'
    assert link not in browser.get("/").text
    assert (queue.bury(["42"]), queue.hold(["42"])) == (1, 1)
    overview = browser.get("/").text
    assert f"<a {link}>record</a> has 1 id " in overview
    assert "record has 1 id held by dead payloads" in re.sub("<[^>]+>", "", overview)
    listing = browser.get("/queue?queue=record&list=held").text
    assert 'value="requeue"' in listing
    assert re.search('value="go_on"[^>]*>Let the id go on<', listing)
    assert re.search(">Let the id go on</button>", browser.get("/job?queue=record&id=42").text)


def test_a_waiting_job_is_in_its_listing_and_has_a_page(browser, app):
    app.tasks["record"].apply_async(("42", {"status": "paid"}), countdown=5430)
    listing = browser.get("/queue?queue=record").text
    assert 'href="/job?queue=record&amp;id=42"' in listing
    assert "in 1 h 30 min" in listing
    page = browser.get("/job?queue=record&id=42").text
    assert "&#34;status&#34;: &#34;paid&#34;" in page


def test_an_id_is_found_in_all_queues(browser, app):
    nothing = browser.get("/search?id=42").text
    assert "No job has this id" in nothing
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    only = browser.get("/search?id=+42+", follow_redirects=False)
    assert (only.status_code, only.headers["location"]) == (303, "/job?queue=record&id=42")
    app.tasks["outcome"].apply_async(("42", "x"), countdown=5430)
    app.tasks["outcome"].ordered_queue.bury(["42"])
    both = browser.get("/search?id=42").text
    for queue in ("record", "outcome"):
        assert f'href="/job?queue={queue}&amp;id=42"' in both
    assert browser.get("/search?id=", follow_redirects=False).headers["location"] == "/"
    # A damaged queue hides no other one.
    context_of(app).store.client.servers.redis.set(
        shard_keys(app.tasks["outcome"].queue_spec.shard_of("42"))["jobs"], "x"
    )
    assert browser.get("/search?id=42", follow_redirects=False).status_code == 303


def test_a_day_is_shown(browser):
    for path in ("/", "/queue?queue=record"):
        assert "Last hour" in browser.get(path).text
        day = browser.get(f"{path}{'&' if '?' in path else '?'}span=24h").text
        assert "Last 24 hours" in day
        assert 'aria-label="Last 24h: 0 jobs processed, 0 runs failed"' in day
    assert browser.get("/?span=2h").status_code == 400


def test_failures_lead_to_their_jobs(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=100)
    app.tasks["record"].ordered_queue.bury(["42"])
    text = browser.get("/failures?queue=record").text
    (link,) = re.findall(r'href="(/failures\?queue=record&amp;failure=\w+)">moved to the morgue', text)
    group = browser.get(html.unescape(link)).text
    assert 'href="/job?queue=record&amp;id=42"' in group
    assert 'value="requeue_matching"' in group
    assert 'value="bury_matching"' not in group


def test_the_shards_show_their_load_and_what_to_do(browser, app, monkeypatch):
    hint = Hint("Ids wait for each other <here>.", "celery -A proj lowkiq reshard record 24")
    monkeypatch.setattr(OrderedQueue, "shard_hints", lambda queue, shards: [hint])
    spec, store = app.tasks["record"].queue_spec, context_of(app).store
    shards = browser.get("/queue?queue=record&list=shards").text
    assert "Ids wait for each other &lt;here&gt;." in shards
    assert hint.advice in shards
    assert hint.advice not in browser.get("/queue?queue=record").text
    assert browser.get("/api/v1/shards?queue=record").json()["hints"] == [hint._asdict()]
    # The jobs a minute are not known yet; then one shard has had some.
    assert shards.count('title="not known yet"') == spec.shards
    store.client.all([sample_call([("record", Counters(time.time() - 70, (0,) * spec.shards))])])
    store.client.servers.redis.hset(shard_keys(spec.shard_refs()[1])["meta"], "processed", 70)
    shards = browser.get("/queue?queue=record&list=shards").text
    assert shards.count('<rect class="done" width="100.0"') == 1
    assert re.search(r"Shard 1 · 0 waiting · (60|59|58) a minute", shards)


def test_of_very_many_shards_those_with_the_most_load_are_listed(browser, app, monkeypatch):
    (report, *_) = app.tasks["record"].ordered_queue.shards()
    many = [replace(report, index=n, stats=Stats(length=n // 550)) for n in range(600)]
    monkeypatch.setattr(OrderedQueue, "shards", lambda queue: tuple(many))
    shards = browser.get("/queue?queue=record&list=shards").text
    assert "The 500 shards with the most load, of 600, are listed." in shards
    assert shards.count('<tr id="shard-') == 500
    assert 'id="shard-599"' in shards


def test_lists_show_what_an_error_says_and_the_page_of_a_job_the_way_to_it(browser, app):
    """F1: a traceback is stored by default; a message may have lines of its own."""
    task, way = app.tasks["outcome"], f"{TRACEBACK}\n  File x, line 7\nValueError: boom\nDETAIL: some"
    task.delay("42", "x")
    store, (shard,) = context_of(app).store, task.queue_spec.shard_refs()
    lease = store.acquire(task.queue_spec, shard, "tester@here", store.observe([shard])[0], 0)
    claim = store.claim(task.queue_spec, lease, 1)
    store.settle(
        task.queue_spec, lease, [Settlement("42", claim.number, Disposition.BURY, error=way.encode())]
    )
    listing = browser.get("/queue?queue=outcome&list=morgue").text
    assert "<code>ValueError: boom</code>" in listing
    assert TRACEBACK not in listing
    page = browser.get("/job?queue=outcome&id=42").text
    assert way in page
    assert "after: ValueError: boom" in page


def test_stats_are_in_lowkiqs_form(browser, app):
    app.tasks["record"].delay("42", "x")
    found = browser.get("/api/v1/stats").json()
    assert found["total"] == {
        "length": 1,
        "morgue_length": 0,
        "lag": pytest.approx(found["total"]["lag"]),
        "missing": 0,
    }
    assert set(found["by_worker"]) >= {"record", "batches", "gated", "outcome"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health(browser, path):
    assert browser.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path, status",
    [
        ("/queue?queue=nobody", 404),
        ("/queue", 400),
        ("/queue?queue=record&list=nothing", 400),
        ("/queue?queue=record&after=nonsense", 400),
        ("/queue?queue=record&by=id&after=0.99999999999999999999999", 400),
        ("/nowhere", 404),
    ],
)
def test_what_cannot_be_shown_is_said(browser, path, status):
    answer = browser.get(path)
    assert answer.status_code == status
    assert "<h1>" in answer.text


@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("POST", "/", "GET, HEAD"),
        ("GET", "/change", "POST"),
        ("POST", "/api/v1/stats", "GET, HEAD"),
        ("POST", "/api/v1/operations/x", "DELETE, GET, HEAD"),
        ("POST", "/static/app.js", "GET, HEAD"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_which_are(browser, method, path, allowed):
    answer = browser.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (405, allowed)


def test_browsers_keep_a_versions_files_and_nothing_else(browser):
    page = browser.get("/")
    assert page.headers["cache-control"] == "no-store"
    (*_, script) = re.findall(r'<script src="([^"]+)" defer', page.text)
    assert browser.get(script).headers["cache-control"] == "private, max-age=31536000, immutable"
    assert browser.get("/static/app.js").headers["cache-control"] == "no-cache"
    assert browser.get("/static/nowhere.js?v=1").headers["cache-control"] == "no-store"
