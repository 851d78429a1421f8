"""Filters of the listings of a queue, in the page's URL and in the API: they combine, and searches go on."""

from __future__ import annotations

import html
import re
import time

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call
from celery_lowkiq.store import listings
from celery_lowkiq.store.keys import shard_keys
from tests.web.pages import hidden_fields, submit

FAILURES = ("a" * 16, "b" * 16)


@pytest.fixture
def record(app):
    """Jobs ``o-0`` to ``o-39``: the even ones are due, each fourth failed, ``o-8`` and ``o-9`` are paused."""
    task, store = app.tasks["record"], context_of(app).store
    now = time.time()
    times = {f"o-{n}": now + 3600 * n if n % 2 else now - 3600 * n - 60 for n in range(40)}
    store.push(task.queue_spec, [Call(one, b'"x"', 1.0, at) for one, at in times.items()])
    for one, at in times.items():
        # As those that wait since then: a push takes no time of the past.
        store.client.servers.redis.zadd(shard_keys(task.queue_spec.shard_of(one))["due"], {one: at})
    for n in range(0, 40, 4):
        keys = shard_keys(task.queue_spec.shard_of(f"o-{n}"))
        store.client.servers.redis.zadd(keys["failed"], {f"o-{n}": n // 10})
        store.client.servers.redis.hset(
            keys["errors"], f"o-{n}", b"\0F" + FAILURES[n // 4 % 2].encode() + b"\0ValueError: boom"
        )
    task.ordered_queue.pause_ids(["o-8", "o-9"])
    return task


def ids_on(page):
    return {int(found) for found in re.findall(r'href="/job\?queue=record&amp;id=o-(\d+)"', page)}


def wanted(keep):
    return {n for n in range(40) if keep(n)}


def is_free(n):
    return n not in (8, 9)


@pytest.mark.parametrize(
    "query, keep",
    [
        ({"state": "due"}, lambda n: n % 2 == 0 and is_free(n)),
        ({"state": "scheduled"}, lambda n: n % 2 == 1 and is_free(n)),
        ({"state": "paused"}, lambda n: not is_free(n)),
        ({"state": "held"}, lambda n: False),
        ({"age": ">7h"}, lambda n: n % 2 == 0 and n >= 7),
        ({"age": "<7h"}, lambda n: n % 2 == 0 and n < 7),
        ({"prefix": "o-1"}, lambda n: str(n)[0] == "1"),
        ({"failure": FAILURES[0]}, lambda n: n % 8 == 0),
        ({"state": "due", "age": ">3h", "prefix": "o-2", "failure": FAILURES[0]}, lambda n: n == 24),
        ({"list": "retries", "state": "due"}, lambda n: n % 4 == 0 and n != 8),
        ({"list": "retries", "state": "paused", "age": ">1h"}, lambda n: n == 8),
        ({"list": "retries", "failure": FAILURES[1], "prefix": "o-1"}, lambda n: n == 12),
        ({"list": "retries", "minimum": "2", "age": "<30h"}, lambda n: n in (20, 24, 28)),
        ({"list": "morgue", "state": "held"}, lambda n: False),
    ],
)
def test_the_page_and_the_api_filter_alike(browser, record, query, keep):
    page = browser.get("/queue", params={"queue": "record", **query})
    assert page.status_code == 200, page.text
    assert ids_on(page.text) == wanted(keep)
    query = dict(query)
    path = query.pop("list", "jobs")
    found = browser.get(f"/api/v1/{path}", params={"queue": "record", **query}).json()
    assert {int(job["id"][2:]) for job in found["items"]} == wanted(keep)


def test_a_listing_says_the_state_of_each_job(browser, record):
    text = browser.get("/queue?queue=record&limit=100").text
    states = re.findall(r'id=o-(\d+)".*?<span class="badge \w+">(\w+)</span>', text, re.S)
    assert {int(n): state for n, state in states} == {
        n: "paused" if not is_free(n) else "scheduled" if n % 2 else "due" for n in range(40)
    }
    record.ordered_queue.bury(["o-1", "o-2"])
    record.ordered_queue.hold(["o-2"])
    text = browser.get("/queue?queue=record&list=morgue").text
    assert re.findall(r'<span class="badge [\w-]+">([\w ]+)</span>', text) == ["dead", "holds its id"]
    assert ids_on(browser.get("/queue?queue=record&list=morgue&state=held").text) == {2}
    assert ids_on(browser.get("/queue?queue=record&list=morgue&age=%3C1h&prefix=o-1").text) == {1}
    assert ids_on(browser.get("/queue?queue=record&list=morgue&age=%3E1h").text) == set()


def test_an_error_leads_to_the_jobs_with_its_failure(browser, record):
    text = browser.get("/queue?queue=record&list=retries&prefix=o-1").text
    links = {
        html.unescape(one) for one in re.findall(r'href="(/queue[^"]*)" title="Jobs with this failure"', text)
    }
    assert links == {f"/queue?queue=record&list=retries&prefix=o-1&failure={one}" for one in FAILURES}
    assert ids_on(browser.get(sorted(links)[0]).text) == {16}


def test_each_filter_stays_in_the_links_of_the_others(browser, record):
    text = browser.get("/queue?queue=record&state=due&age=%3E3h&prefix=o-1&limit=2").text
    held = "/queue?queue=record&list=jobs&prefix=o-1&state=held&age=%3E3h&limit=2"
    assert f'href="{html.escape(held)}"' in text
    assert '<input type="hidden" name="state" value="due">' in text
    assert '<option value="&gt;3h" selected>over 3 h</option>' in text
    (more,) = re.findall(r'href="([^"]*after=[^"]*)"', text)
    following = browser.get(html.unescape(more)).text
    assert (ids_on(text), ids_on(following)) == ({18, 16}, {14, 12})


def test_a_search_says_how_far_it_came_and_goes_on(browser, record, monkeypatch):
    monkeypatch.setattr(listings, "SEARCHED", 15)
    monkeypatch.setattr(listings, "STEP", 5)
    path, said = "/queue?queue=record&prefix=o-39", []
    while True:
        text = browser.get(path).text
        said += re.findall(r'id="searched">([^<]*)<', text)
        (path,) = map(html.unescape, re.findall(r'href="([^"]*)">Search on<', text) or [""])
        if not path:
            break
    assert said == [f"Searched {n} of 40 jobs." for n in (15, 30, 40)]
    assert ids_on(text) == {39}
    found = browser.get("/api/v1/jobs", params={"queue": "record", "prefix": "o-39"}).json()
    assert (found["items"], found["searched"], found["total"]) == ([], 15, 40)
    assert found["next"]


def test_what_an_index_finds_says_nothing_of_a_search(browser, record):
    assert 'id="searched"' not in browser.get("/queue?queue=record&state=due&age=%3E1h").text


@pytest.mark.parametrize(
    "query, message",
    [
        ("state=new", "expected one of due, scheduled, paused, held"),
        ("list=morgue&state=due", "state='due' is invalid"),
        ("age=2h", "age='2h' is invalid: expected"),
        ("age=%3Elunch", "is invalid: expected"),
        ("by=id&failure=x", "go with perform_in or retry_count"),
        ("searched=-1", "searched='-1' is invalid"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_reason(browser, query, message):
    answer = browser.get(f"/queue?queue=record&{query}")
    assert answer.status_code == 400
    assert message in html.unescape(answer.text)
    # The page with its forms stays.
    assert 'class="filter"' in answer.text
    assert "Nothing matches" not in answer.text


@pytest.mark.parametrize(
    "path, message, kept",
    [
        ("/queue?queue=record&prefix=4&minimum=soon", "minimum='soon' is invalid", 'value="soon"'),
        ("/queue?queue=record&prefix=4&age=%3Elunch", "age='>lunch' is invalid", 'value="4"'),
        ("/failures?queue=record&error=ValueError&since=lunch", "since='lunch' is invalid", 'value="lunch"'),
        ("/search?id=a%07b", "control", "<h1>"),
    ],
)
def test_what_was_typed_stays_beside_the_error(browser, path, message, kept):
    answer = browser.get(path)
    assert answer.status_code == 400
    assert message in html.unescape(answer.text)
    assert kept in answer.text
    assert 'data-refresh="3"' not in answer.text


def buttons(page):
    """The actions on all of a listing, with what their forms send."""
    part = page.text.partition('id="for-all"')[2].partition('meaning"')[0]
    return {
        fields["action"]: {
            name: fields[name] for name in ("prefix", "state", "age", "failure") if name in fields
        }
        for fields in map(hidden_fields, part.split("</form>"))
        if fields
    }


@pytest.mark.parametrize(
    "filters, keep",
    [
        ({"prefix": "o-1"}, lambda n: str(n)[0] == "1"),
        ({"state": "paused"}, lambda n: n == 8),
        ({"state": "due", "age": ">7h"}, lambda n: n >= 8 and n != 8),
        ({"failure": FAILURES[0], "prefix": "o-2"}, lambda n: n == 24),
    ],
)
@pytest.mark.parametrize("action", ["bury_matching", "delete_matching"])
def test_all_that_match_are_changed_and_no_others(browser, record, filters, keep, action):
    """The buttons of a filtered listing took all: five rows were shown, and 26 jobs were buried."""
    page = browser.get("/queue", params={"queue": "record", "list": "retries", **filters})
    failing, matching = wanted(lambda n: n % 4 == 0), wanted(lambda n: n % 4 == 0 and keep(n))
    assert ids_on(page.text) == matching
    assert buttons(page) == {"bury_matching": filters, "delete_matching": filters}
    assert f"{len(matching)} failed job" in submit(browser, action, **filters).text
    done = submit(browser, action, confirmed="1", **filters)
    assert f"{len(matching)} failed job" in done.text
    left = browser.get("/queue", params={"queue": "record", "list": "retries"})
    assert ids_on(left.text) == failing - matching
    assert buttons(left) == {"bury_failed": {}, "delete_failed": {}}


def test_the_dead_that_match_are_changed_and_no_others(browser, record):
    record.ordered_queue.bury([f"o-{n}" for n in range(20)])
    page = browser.get("/queue", params={"queue": "record", "list": "morgue", "prefix": "o-1"})
    matching = wanted(lambda n: n < 20 and str(n)[0] == "1")
    assert ids_on(page.text) == matching
    assert set(buttons(page)) == {"requeue_matching", "delete_dead_matching"}
    submit(browser, "delete_dead_matching", prefix="o-1", age="<1h", confirmed="1")
    left = browser.get("/queue", params={"queue": "record", "list": "morgue"})
    assert ids_on(left.text) == wanted(lambda n: n < 20) - matching
    assert "state=&#39;due&#39; is invalid" in submit(browser, "delete_dead_matching", state="due").text


@pytest.mark.parametrize(
    "query",
    ["list=jobs&state=due", "list=jobs&prefix=o-1", "list=retries&minimum=2", "list=morgue&maximum=9"],
)
def test_no_button_changes_more_than_a_listing_shows(browser, record, query):
    record.ordered_queue.bury(["o-1"])
    assert buttons(browser.get(f"/queue?queue=record&{query}")) == {}
