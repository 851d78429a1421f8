"""The timeline of a job's page, its times, and the words that pages explain."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from celery_lowkiq import web
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.rules.text import TERMS
from celery_lowkiq.store.keys import shard_keys

PAGE = "/job?queue=record&id=42"
TEMPLATES = Path(web.__file__).parent / "templates"
EMPTY = {
    "/queue?queue=record": "Calls of the task appear here",
    "/queue?queue=record&list=retries": "Dead ones are in the morgue",
    "/queue?queue=record&list=morgue": "Requeue them when the cause is mended",
    "/queue?queue=record&list=processing": "see Shards and Nodes",
    "/queue?queue=record&list=paused": "press Pause",
    "/queue?queue=record&list=held": 'A task with when_dead="hold"',
    "/failures?queue=record": "When a run raises an error",
    "/failures?queue=record&failure=0123456789abcdef": "All failures",
    "/nodes": "celery -A proj worker -P threads",
    "/operations": "run, bury, requeue or delete",
    "/audit": "celery -A proj lowkiq requeue QUEUE ID",
    "/trackers": 'with track("import") as tracker',
    "/search?id=nobody": "the listings of a queue search by its beginning",
    PAGE: "Search all queues for it",
}


def shown(browser, path=PAGE, part="timeline"):
    """The words of a part of a page, without its markup."""
    found = browser.get(path).text.partition(f'<div id="{part}" data-live>')[2].partition("data-live>")[0]
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", found)).split())


@pytest.mark.parametrize("path", EMPTY)
def test_an_empty_page_says_what_to_do(browser, path):
    assert EMPTY[path] in html.unescape(browser.get(path).text)


def test_a_timeline_has_what_is_next_and_what_people_did(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue = app.tasks["record"].ordered_queue
    assert shown(browser).startswith(
        "Timeline the latest first The first run, if a worker owns shard 0 by then in 1 h 30 min"
    )
    audit = Audit(app)
    changes = [
        (Change("anna", "::1", "bury", "record", ("42",), reason="<b>wrong</b>"), "done", 1),
        (Change("boris", "::1", "requeue", "record", ("42", "43", "44")), "done", 3),
        # What failed, changed nothing or is of others is not in it.
        (Change("carl", "::1", "bury", "record", ("42",)), "failed", None),
        (Change("carl", "::1", "bury", "record", ("42",)), "done", 0),
        (Change("carl", "::1", "bury", "record", ("43",)), "done", 1),
        (Change("carl", "::1", "bury", "outcome", ("42",)), "done", 1),
        (Change("carl", "::1", "read_plain", "record", ("42",)), "done", None),
    ]
    for change, state, count in changes:
        audit.write(change, state, count)
    text = shown(browser)
    assert "Buried by anna : <b>wrong</b>" in text
    assert "Requeued with 2 other ids by boris" in text
    assert "carl" not in text
    queue.pause(job_id="42")
    assert "The next run when id 42 is resumed" in shown(browser)


def test_changes_of_the_whole_queue_or_shard_count_since_the_first_try(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue, client = app.tasks["record"].ordered_queue, context_of(app).store.client.servers.redis
    shard = queue.shard_of("42")
    for index in (shard, (shard + 1) % queue.spec.shards):
        Audit(app).write(Change("anna", "::1", "pause_shard", "record", shard=index), "done", 1)
    Audit(app).write(Change("anna", "::1", "requeue_all", "record"), "done", 12)
    assert "anna" not in shown(browser)
    line = f"{1e9:.6f}\t0\tnode\tValueError: x"
    client.hset(shard_keys(queue.spec.shard_of("42"))["tries"], "42", line)
    text = shown(browser)
    assert f"Paused shard {shard} of queue record by anna" in text
    assert "Requeued 12 dead jobs of queue record by anna" in text
    assert text.count("anna") == 2


def test_a_change_by_a_filter_is_said_to_be_none_of_this_job_perhaps(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue, client = app.tasks["record"].ordered_queue, context_of(app).store.client.servers.redis
    client.hset(shard_keys(queue.spec.shard_of("42"))["tries"], "42", f"{1e9:.6f}\t0\tnode\tValueError: x")
    filtered = Change("anna", "::1", "requeue_matching", "record", filter={"error": "x*", "limit": 200})
    Audit(app).write(filtered, "done", 200)
    Audit(app).write(Change("carl", "::1", "requeue_all", "record"), "cancelled", 3)
    text = shown(browser)
    assert "Requeued 200 dead jobs of queue record, perhaps not this one by anna" in text
    assert "carl" not in text
    queue.bury(["42"])
    assert "anna" in shown(browser)
    Audit(app).write(filtered, "done", 199)
    # It is dead since before: that change did not reach it.
    assert "199" not in shown(browser)


def test_the_time_between_two_events_is_said_as_such(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue, client = app.tasks["record"].ordered_queue, context_of(app).store.client.servers.redis
    lines = [f"{1e9 + at:.6f}\t{n}\tnode\t{error}" for n, (at, error) in enumerate([(0, "a"), (22, "b")])]
    client.hset(shard_keys(queue.spec.shard_of("42"))["tries"], "42", "\n".join(lines))
    assert "ago on node 22 s later than 1 a" in shown(browser)


def test_similar_tries_are_folded(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue, client = app.tasks["record"].ordered_queue, context_of(app).store.client.servers.redis
    lines = [f"{1e9 + 60 * n:.6f}\t{n}\tnode\tValueError: order {n}" for n in range(5)]
    client.hset(shard_keys(queue.spec.shard_of("42"))["tries"], "42", "\n".join(lines))
    page = browser.get(PAGE).text
    assert re.search(r'<details id="tries-of-\d+"><summary>4 similar earlier tries', page)
    assert "within 3 min" in shown(browser)
    assert page.count('<li class="try">') == 5


def test_each_time_has_the_exact_one_as_title(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    page = browser.get(PAGE).text
    clock = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    elements = re.findall(r"<time [^>]*>", page)
    assert elements
    assert all(re.search(f'title="{clock}"', one) for one in elements)
    assert re.search(rf"in 1 h 30 min \(<time [^>]* data-exact>{clock}</time>\)", page)


def test_what_stands_in_titles_is_no_relative_time(browser, app):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    found = re.findall(r"<time ([^>]*)>([^<]*)<", browser.get("/queue?queue=record").text)
    assert [text for attributes, text in found if "data-words" not in attributes] == ["in 1 h 30 min"]
    assert all(re.fullmatch(r'datetime="[\dT:-]+Z" title="[\d-]+ [\d:]+ UTC".*', one) for one, _ in found)


@pytest.mark.parametrize("path", ["/", "/queue?queue=record", "/queue?queue=record&list=shards", PAGE])
def test_each_term_of_a_page_has_its_explanation_once(browser, app, path):
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    page = browser.get(path).text
    targets = set(re.findall(r'popovertarget="([^"]+)"', page))
    assert targets
    assert sorted(targets) == sorted(re.findall(r'<div popover id="([^"]+)"', page))


@pytest.mark.parametrize(
    "listed, word",
    [
        ("jobs", "waiting"),
        ("retries", "retry"),
        ("shards", "shard"),
        *((name, name) for name in ("morgue", "processing", "paused", "held")),
    ],
)
def test_a_tab_says_what_it_lists(browser, listed, word):
    text = html.unescape(browser.get(f"/queue?queue=record&list={listed}").text)
    said = re.sub("</?code>", "`", text)
    assert f'<p class="muted meaning">{word.capitalize()}: {TERMS[word]}.</p>' in said


def test_no_word_is_explained_that_no_page_uses():
    text = "".join(path.read_text() for path in TEMPLATES.glob("*.html")).lower()
    flower = (TEMPLATES.parents[1] / "flower" / "templates").glob("*.html")
    text += "".join(path.read_text() for path in flower)
    assert [word for word in TERMS if f'"{word}"' not in text and f"'{word}'" not in text] == []


def test_a_failure_without_an_error_has_a_link_that_says_so(browser, app):
    """A link without words cannot be read aloud."""
    app.tasks["record"].apply_async(("42", "x"), countdown=5430)
    queue, client = app.tasks["record"].ordered_queue, context_of(app).store.client.servers.redis
    client.zadd(shard_keys(queue.spec.shard_of("42"))["failed"], {"42": 0})
    assert ">An error that was not stored</a>" in browser.get("/failures?queue=record").text
