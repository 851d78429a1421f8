"""What happened to an id, in the order of time, and what is next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.diagnosis import (
    LONGEST,
    SHORTEST,
    Dead,
    DiagnosisFacts,
    Owner,
    ShownChange,
    Waiting,
    timeline,
)
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.views import Running, Try

SHARD = ShardRef("orders", 3)
OWNER = Owner("w1", alive=True, lane="lane-0")
FACTS = DiagnosisFacts("42", SHARD, 1000.0, owner=OWNER, max_retries=8)
FAILING = replace(FACTS, waiting=Waiting(1100.0, 5))


def failed(*times, error="ValueError: order {}", first=0):
    return tuple(Try(at, first + n, "w1", error.format(n)) for n, at in enumerate(times))


def kinds(entries):
    return [entry.kind for entry in entries]


def test_nothing_is_known_of_an_unknown_id():
    assert timeline(FACTS, (), ()) == ()


def test_the_next_run_stands_above_now_and_tries_below():
    found = timeline(FAILING, failed(700.0, 900.0, error="E"), ())
    assert kinds(found) == ["next", "now", "try", "try"]
    assert (found[0].text, found[0].at) == ("Retry 6 of 8", 1100.0)
    assert [entry.failed.retry_count for entry in found[2:]] == [1, 0]


def test_times_between_are_to_scale_with_a_shortest_line():
    found = timeline(FAILING, failed(599.0, 600.0, error="E"), ())
    assert [entry.gap for entry in found] == [100.0, 400.0, 1.0, None]
    assert [entry.length for entry in found] == [LONGEST // 4, LONGEST, SHORTEST, 0]


def test_similar_tries_in_a_row_are_folded_behind_the_latest():
    tries = (*failed(100.0, error="KeyError: 1"), *failed(200.0, 300.0, 500.0, 900.0, first=1))
    found = timeline(FAILING, tries, ())
    assert kinds(found) == ["next", "now", "try", "fold", "try"]
    assert found[2].failed.at == 900.0
    assert [entry.at for entry in found[3].folded] == [500.0, 300.0, 200.0]
    assert [entry.gap for entry in found] == [100.0, 100.0, 400.0, 100.0, None]
    assert [entry.gap for entry in found[3].folded] == [200.0, 100.0, None]


def test_two_similar_tries_are_not_folded():
    assert kinds(timeline(FACTS, failed(1.0, 2.0), ())) == ["now", "try", "try"]


def test_a_divider_tells_who_requeued_it_and_separates_what_is_folded():
    tries = (*failed(100.0, 200.0, 300.0), *failed(700.0, 800.0, 900.0))
    change = ShownChange(500.0, "Requeued", "anna", "fixed")
    found = timeline(FAILING, tries, [change])
    assert kinds(found) == ["next", "now", "try", "fold", "change", "try", "fold"]
    assert found[4].change == change


def test_retries_that_began_again_without_a_known_reason_are_divided_too():
    tries = (*failed(100.0, 200.0, error="E"), *failed(700.0, error="E"))
    found = timeline(replace(FAILING, waiting=Waiting(1100.0, 0)), tries, ())
    assert kinds(found) == ["next", "now", "try", "again", "try", "try"]
    # The time reaches over the divider.
    assert found[2].gap == 500.0
    requeued = timeline(replace(FAILING, waiting=Waiting(1100.0)), tries[:2], ())
    assert kinds(requeued) == ["next", "now", "again", "try", "try"]
    assert requeued[0].text == "The next run"


def test_a_dead_job_waits_for_somebody():
    facts = replace(FACTS, dead=Dead(900.0), held_since=950.0)
    found = timeline(facts, failed(900.0), ())
    assert kinds(found) == ["stopped", "now", "held", "dead", "try"]
    assert found[0].text == "Nothing is next: requeue the dead job to run it again"


def test_a_state_is_not_told_twice():
    facts = replace(FAILING, id_paused=900.0)
    assert kinds(timeline(facts, (), ())) == ["stopped", "now", "paused"]
    found = timeline(facts, (), [ShownChange(901.0, "Paused", "anna")])
    assert kinds(found) == ["stopped", "now", "change"]


def test_changes_of_the_whole_queue_count_from_the_first_try_on():
    changes = [ShownChange(at, "Resumed queue orders", "anna", whole=True) for at in (50.0, 500.0)]
    found = timeline(FAILING, failed(100.0), changes)
    assert [entry.at for entry in found if entry.change] == [500.0]


@pytest.mark.parametrize(
    "more, kind, text",
    [
        ({"waiting": Waiting(1100.0)}, "next", "The first run"),
        ({"waiting": Waiting(900.0, 9)}, "next", "Retry 10 as soon as its lane is free"),
        ({"waiting": Waiting(900.0), "owner": None}, "stopped", "The first run when a worker owns shard 3"),
        ({"owner": None}, "next", "Retry 6 of 8, if a worker owns shard 3 by then"),
        ({"queue_paused": 1.0}, "stopped", "when queue orders is resumed"),
        ({"queue_paused": 1.0, "id_paused": 2.0}, "stopped", "when queue orders and id 42 are resumed"),
        ({"held_since": 1.0}, "stopped", "when the dead payload is requeued, or the id goes on"),
        ({"moving": True}, "stopped", "when the job has its place in the new shards"),
        ({"claimed": True}, "next", "Retry 6 of 8 when this run has ended"),
        ({"claimed": True, "waiting": Waiting(900.0)}, "next", "The next run when this run has ended"),
        (
            {"claimed": True, "waiting": Waiting(900.0, payloads=3)},
            "next",
            "One run with 3 payloads when this run has ended",
        ),
        (
            {"claimed": True, "waiting": Waiting(900.0, payloads=3), "merges": False},
            "next",
            "The next run when this run has ended",
        ),
        ({"waiting": Waiting(1100.0, 5, payloads=3)}, "next", "Retry 6 of 8 with 3 payloads"),
    ],
)
def test_what_is_next(more, kind, text):
    entry = timeline(replace(FAILING, **more), (), ())[0]
    assert entry.kind == kind
    assert entry.text.endswith(text)


def test_a_run_is_told_with_its_beginning():
    running = replace(OWNER, running=Running(SHARD, ("42",), 1, 40.0))
    found = timeline(replace(FACTS, claimed=True, owner=running), (), ())
    assert [(entry.kind, entry.text, entry.at) for entry in found[1:]] == [
        ("running", "Runs on node w1 lane-0", 960.0)
    ]
    assert timeline(replace(FACTS, claimed=True), (), ())[1].text == "Claimed by node w1 lane-0"
