"""Listings with filters: each combination finds what it should, in order, in bounded steps."""

from __future__ import annotations

from itertools import product

import pytest

from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, Settlement
from celery_lowkiq.store import listings
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import claim, take

QUEUE = QueueSpec("searched", shards=3, batch_size=1000)
#: Fingerprints of the errors of failed jobs, in turn.
MARKS = ("a" * 16, "b" * 16)
PAUSED, HELD = ("id-10", "id-11"), ("id-20", "id-21")


def stored_error(number):
    return b"\0F" + MARKS[number % 2].encode() + b"\0ValueError: boom"


@pytest.fixture(params=[1000, 3])
def queries(store, request, monkeypatch):
    """A hundred waiting jobs, due at 1000 to 1099 s: each fifth has failed. Few are read at once, too."""
    monkeypatch.setattr(listings, "READ", 3 * request.param)
    monkeypatch.setattr(listings, "STEP", request.param)
    store.push(QUEUE, [Call(f"id-{n:02d}", b"x", 1, 1000.0 + n) for n in range(100)])
    for shard in range(3):
        lease = take(store, QUEUE, shard)
        taken = claim(store, lease, 1000)
        numbers = {job.id: int(job.id[3:]) for job in taken.jobs}
        retried = {one: {"retry_count": n // 50, "error": stored_error(n)} for one, n in numbers.items()}
        store.settle(
            QUEUE,
            lease,
            [
                Settlement(one, taken.number, Disposition.RETRY, **retried[one])
                if n % 5 == 0
                else Settlement(one, taken.number, Disposition.RETURN)
                for one, n in numbers.items()
            ],
        )
        due = shard_keys(QUEUE.shard_refs()[shard])["due"]
        store.client.commands([("ZADD", due, "XX", 1000 + n, one) for one, n in numbers.items()])
    Pausing(store.client).switch_ids(QUEUE, [*PAUSED], paused=True)
    return Queries(store.client)


def pages(read, **options):
    """Jobs of all pages, and how many entries were searched for each page."""
    found, searched, after = [], [], None
    while True:
        page = read(Listing(after=after, **options))
        found += page.items
        searched.append(page.searched)
        after = page.next
        if after is None:
            return [int(job.id[3:]) for job in found], searched


def is_wanted(number, prefix="", since=None, until=None, pause="", failure="", failed=False):
    paused = f"id-{number:02d}" in PAUSED
    return (
        f"id-{number:02d}".startswith(prefix)
        and (since is None or 1000 + number >= since)
        and (until is None or 1000 + number <= until)
        and pause in ("", "paused" if paused else "free")
        and (not failure or (number % 5 == 0 and MARKS[number % 2] == failure))
        and (not failed or number % 5 == 0)
    )


@pytest.mark.parametrize("by", ["perform_in", "retry_count"])
def test_filters_combine(queries, by):
    for prefix, since, until, pause, failure, reverse in product(
        ("", "id-1"), (None, 1011.0), (None, 1060.0), ("", "free", "paused"), ("", MARKS[0]), (False, True)
    ):
        filters = {"prefix": prefix, "since": since, "until": until, "pause": pause, "failure": failure}
        found, _ = pages(lambda one: queries.jobs(QUEUE, one), by=by, limit=20, reverse=reverse, **filters)
        wanted = [n for n in range(100) if is_wanted(n, failed=by == "retry_count", **filters)]
        # The time of a job orders retries here, too.
        assert found == sorted(wanted, reverse=reverse), filters


def test_what_an_index_finds_is_not_searched(queries):
    for options in ({}, {"pause": "free", "until": 1050.0}, {"since": 1020.0, "minimum": 1030.0}):
        _, searched = pages(lambda one: queries.jobs(QUEUE, one), by="perform_in", **options)
        assert {*searched} == {None}


def test_a_page_searches_some_and_its_cursor_goes_on(queries, monkeypatch):
    monkeypatch.setattr(listings, "SEARCHED", 30)
    monkeypatch.setattr(listings, "STEP", 10)
    options = {"by": "perform_in", "prefix": "id-9"}
    page = queries.jobs(QUEUE, Listing(**options))
    assert (page.items, page.searched, page.total) == ((), 30, 100)
    assert page.next
    found, searched = pages(lambda one: queries.jobs(QUEUE, one), **options)
    assert found == list(range(90, 100))
    assert sum(searched) == 100
    assert max(searched) == 30


def test_the_rest_of_a_step_is_left_to_the_next_page(queries):
    page = queries.jobs(QUEUE, Listing("perform_in", prefix="id-1", limit=3))
    assert [job.id for job in page.items] == ["id-10", "id-11", "id-12"]
    assert page.searched == 13


@pytest.mark.parametrize("by", ["id", "updated_at"])
def test_filters_of_the_dead_combine(store, queries, by):
    actions = Actions(store.client, lambda *_: None)
    actions.bury(QUEUE, [f"id-{n:02d}" for n in range(100)], b"by hand")
    client = store.client
    for shard in QUEUE.shard_refs():
        key = shard_keys(shard)["dead"]
        dead = client.commands([("ZRANGE", key, 0, -1)])[0]
        client.commands([("ZADD", key, "XX", 1000 + int(one[3:]), one) for one in dead])
    for prefix, since, reverse in product(("", "id-1"), (None, 1015.0), (False, True)):
        filters = {"prefix": prefix, "since": since}
        found, _ = pages(lambda one: queries.morgue(QUEUE, one), by=by, limit=7, reverse=reverse, **filters)
        assert found == sorted((n for n in range(100) if is_wanted(n, **filters)), reverse=reverse), filters
