"""Why an id is not running: one answer for each state of the world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from celery_lowkiq.rules.diagnosis import Dead, DiagnosisFacts, DueBefore, Missing, Owner, Waiting, why
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import since
from celery_lowkiq.rules.views import Running

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
NOW = 1_795_000_000.0
SHARD = ShardRef("orders", 7)
OTHER = ShardRef("orders", 3)
HOUR_AGO = NOW - 3600
X = "node x@host lane-2"
AGO = "since 2026-11-18 10:06:40 UTC (1 h ago)"


def owner(running=None, **options):
    """It reported two seconds ago."""
    options = {"since": HOUR_AGO, "silent": 2.0, "alive": True, "lane": "lane-2", **options}
    return Owner("x@host", running=running, **options)


def run(*ids, shard=SHARD, count=None, seconds=38.0, **options):
    return Running(shard, ids, count or len(ids), seconds, **options)


UNHEARD = Owner("x@host", HOUR_AGO, alive=None)
NO_REPORTS = "The master with the reports of nodes is unreachable: who is alive and what runs is unknown."
DUE = Waiting(NOW - 5)
BEHIND = Waiting(NOW - 5, ahead=3)
LATER = Waiting(NOW + 11520, retry_count=3, error="Traceback:\n  File\nValueError: no stock\n")

ANSWERS = {
    "nowhere": ({}, ["nowhere"], "There is no job 42: it is done, or was deleted, or never pushed."),
    "nowhere and paused": (
        {"id_paused": HOUR_AGO},
        ["nowhere", "paused"],
        f"There is no job 42: it is done, or was deleted, or never pushed. Id 42 has been paused {AGO}.",
    ),
    "behind a run that is overdue": (
        {"waiting": DUE, "owner": owner(run("y", shard=OTHER, seconds=93, overdue=True, usual=0.2))},
        ["behind"],
        f"It is the next of shard 7: {X} has been running job y of orders/3 for 1 min 35 s, which is overdue "
        "(usual is 0.2 s).",
    ),
    "behind jobs of other queues in its lane": (
        {
            "waiting": Waiting(NOW - 1134),
            "owner": owner(run("y", shard=ShardRef("reindex", 2), seconds=0.0)),
            "due_before": (DueBefore(ShardRef("reindex", 2), 1500.0), DueBefore(OTHER, 1200.0)),
        },
        ["behind", "behind"],
        f"It is the next of shard 7: {X} has been running job y of reindex/2 for 2 s. Before it, lane-2 "
        "works orders/3, reindex/2: a job there is 25 min late, this one 18 min 54 s.",
    ),
    "overdue": (
        {"claimed": True, "owner": owner(run("42", overdue=True, max_run=30.0))},
        ["running"],
        f"It has been running for 40 s, which is overdue (max_run is 30 s), on {X}.",
    ),
    "scheduled": (
        {"waiting": Waiting(NOW + 90), "owner": owner(run("7"))},
        ["scheduled"],
        "It waits for its time: in 1 min 30 s (2026-11-18 11:08:10 UTC).",
    ),
    "retry": (
        {"waiting": LATER, "owner": owner(), "max_retries": 25},
        ["scheduled"],
        "It waits for its time: in 3 h 12 min (2026-11-18 14:18:40 UTC), retry 4 of 25 after: "
        "ValueError: no stock.",
    ),
    "retry in a small batch": (
        {"waiting": replace(LATER, largest_batch=2), "owner": owner(), "max_retries": 25},
        ["scheduled"],
        "It waits for its time: in 3 h 12 min (2026-11-18 14:18:40 UTC), retry 4 of 25 in a batch of at "
        "most 2 after: ValueError: no stock.",
    ),
    "alone, when its retries are used up": (
        {"waiting": replace(LATER, largest_batch=1), "owner": owner(), "max_retries": 2},
        ["scheduled"],
        "It waits for its time: in 3 h 12 min (2026-11-18 14:18:40 UTC), retry 4 alone after: "
        "ValueError: no stock.",
    ),
    "retry for ever": (
        {"waiting": Waiting(NOW + 0.3, 0), "owner": owner()},
        ["scheduled"],
        "It waits for its time: in 0.3 s (2026-11-18 11:06:40 UTC), retry 1.",
    ),
    "scheduled in a shard that nobody has": (
        {"waiting": Waiting(NOW + 90)},
        ["scheduled", "unowned"],
        "It waits for its time: in 1 min 30 s (2026-11-18 11:08:10 UTC). Shard 7 never had an owner: does a "
        "worker serve queue orders?",
    ),
    "behind others": (
        {"waiting": BEHIND, "owner": owner(run("y"))},
        ["behind"],
        f"It waits behind 3 due jobs of shard 7, owned by {X}, which has been running job y for 40 s.",
    ),
    "behind another shard of the lane": (
        {"waiting": Waiting(NOW - 5, ahead=1), "owner": owner(run("a", "b", shard=OTHER, count=7))},
        ["behind"],
        f"It waits behind 1 due job of shard 7, owned by {X}, which has been running jobs a, b and 5 more "
        "of orders/3 for 40 s.",
    ),
    "behind others on an idle lane": (
        {"waiting": BEHIND, "owner": owner(lane=None)},
        ["behind"],
        "It waits behind 3 due jobs of shard 7, owned by node x@host.",
    ),
    "next": (
        {"waiting": DUE, "owner": owner(run("y"))},
        ["behind"],
        f"It is the next of shard 7: {X} has been running job y for 40 s.",
    ),
    "due": (
        {"waiting": DUE, "owner": owner()},
        ["due"],
        f"It is due, and about to be claimed by {X}.",
    ),
    "due in this moment": (
        {"waiting": Waiting(NOW), "owner": owner()},
        ["due"],
        f"It is due, and about to be claimed by {X}.",
    ),
    "running": (
        {"claimed": True, "owner": owner(run("41", "42"))},
        ["running"],
        f"It has been running for 40 s, on {X}.",
    ),
    "running, as its worker has just reported": (
        {"claimed": True, "owner": owner(run("42"), silent=0.0)},
        ["running"],
        f"It has been running for 38 s, on {X}.",
    ),
    "running with another behind it": (
        {"claimed": True, "waiting": DUE, "owner": owner(run("42"))},
        ["running", "behind_itself"],
        f"It has been running for 40 s, on {X}. Another call waits behind it, and runs after it.",
    ),
    "running with merged calls behind it": (
        {"claimed": True, "waiting": replace(DUE, payloads=3), "owner": owner(run("42"))},
        ["running", "behind_itself"],
        f"It has been running for 40 s, on {X}. Later calls wait behind it, merged into one job with 3 "
        "payloads, which runs after it.",
    ),
    "running with calls behind it that run alone": (
        {"claimed": True, "waiting": replace(DUE, payloads=3), "owner": owner(run("42")), "merges": False},
        ["running", "behind_itself"],
        f"It has been running for 40 s, on {X}. 3 calls wait behind it, and run after it, one by one.",
    ),
    "behind a dead payload": (
        {"waiting": DUE, "owner": owner(), "held_since": NOW - 60, "dead": Dead(NOW - 60, "KeyError: 'GBP'")},
        ["behind_dead"],
        f"It waits behind a dead payload, which has held it {since(NOW - 60, NOW)} after: "
        "KeyError: 'GBP'. Requeue or edit the dead payload, or let the id go on.",
    ),
    "to be sorted": (
        {"waiting": DUE, "moving": True, "owner": owner()},
        ["moving"],
        "Queue orders gets another number of shards, and the job is not sorted yet.",
    ),
    "claimed ahead": (
        {"claimed": True, "owner": owner(run("41"))},
        ["claimed"],
        f"It is claimed by {X}, which has been running job 41 for 40 s: it runs with that, or next.",
    ),
    "just claimed": (
        {"claimed": True, "owner": owner()},
        ["claimed"],
        f"It is claimed by {X}, and about to run, or has just run.",
    ),
    "it ran when its worker died": (
        {"claimed": True, "owner": owner(run("42"), silent=40.0, alive=False)},
        ["silent"],
        "It was running on node x@host, which was last heard of 40 s ago: another node takes the shard "
        "when the lease has run out.",
    ),
    "in processing without an owner": (
        {"claimed": True, "unowned_since": HOUR_AGO},
        ["unowned"],
        f"Shard 7 has had no owner {AGO}: does a worker serve queue orders?",
    ),
    "X: a shard that waits out a lease of another Redis": (
        {"waiting": DUE, "unowned_since": HOUR_AGO, "free_in": 7.4},
        ["unowned"],
        f"Shard 7 has had no owner {AGO}: Redis restarted, failed over or lost data, and it is free in 7 s, "
        "when a former owner's lease has run out.",
    ),
    "unowned": (
        {"waiting": DUE, "unowned_since": HOUR_AGO},
        ["unowned"],
        f"Shard 7 has had no owner {AGO}: does a worker serve queue orders?",
    ),
    "a silent owner": (
        {"waiting": DUE, "owner": owner(silent=None, alive=False)},
        ["silent"],
        "Shard 7 belongs to node x@host, which was not heard of for an hour: another node takes the shard "
        "when the lease has run out.",
    ),
    "an owner that leaves": (
        {"waiting": DUE, "owner": owner(run("y"), leaving=True)},
        ["leaving"],
        "Node x@host stops or is quiet: it begins nothing new, and releases the shard.",
    ),
    "paused in every way": (
        {
            "waiting": DUE,
            "queue_paused": HOUR_AGO,
            "shard_paused": HOUR_AGO,
            "id_paused": HOUR_AGO,
            "owner": owner(run("y")),
        },
        ["paused"] * 3,
        f"Queue orders has been paused {AGO}. Shard 7 has been paused {AGO}. Id 42 has been paused {AGO}.",
    ),
    "paused before its time": (
        {"waiting": Waiting(NOW + 90), "shard_paused": HOUR_AGO, "owner": owner()},
        ["paused", "scheduled"],
        f"Shard 7 has been paused {AGO}. It waits for its time: in 1 min 30 s (2026-11-18 11:08:10 UTC).",
    ),
    "limited": (
        {"waiting": DUE, "owner": owner(), "rate": 0.1, "token_wait": 7.0},
        ["limited", "due"],
        "The rate limit of the queue, 0.1 runs a second, is used up: in 7 s the next may begin. "
        f"It is due, and about to be claimed by {X}.",
    ),
    "limited by its id": (
        {"waiting": Waiting(NOW + 6), "owner": owner(), "id_rate": 0.1, "id_token_at": NOW + 6},
        ["limited"],
        "Its id may run once in 10 s, and the next run may begin in 6 s.",
    ),
    "due, and limited by its id": (
        {"waiting": DUE, "owner": owner(), "id_rate": 0.1, "id_token_at": NOW + 6},
        ["limited"],
        "Its id may run once in 10 s, and the next run may begin in 6 s.",
    ),
    "later than its id's next token": (
        {"waiting": Waiting(NOW + 90), "owner": owner(), "id_rate": 0.1, "id_token_at": NOW + 6},
        ["scheduled"],
        "It waits for its time: in 1 min 30 s (2026-11-18 11:08:10 UTC).",
    ),
    "a suspect": (
        {"waiting": DUE, "owner": owner(run("y")), "suspect": True},
        ["suspect", "behind"],
        "It was running when its worker died: it runs alone, one such job at a time. "
        f"It is the next of shard 7: {X} has been running job y for 40 s.",
    ),
    "dead": (
        {"dead": Dead(HOUR_AGO, "ValueError: no stock"), "owner": owner()},
        ["dead"],
        f"It has been in the morgue {AGO} after: ValueError: no stock.",
    ),
    "dead, and waiting again": (
        {"dead": Dead(HOUR_AGO), "waiting": DUE, "owner": owner()},
        ["due", "dead"],
        f"It is due, and about to be claimed by {X}. Older payloads of it have been in the morgue {AGO}.",
    ),
    "due, and the reports are unreachable": (
        {"waiting": DUE, "owner": UNHEARD, "missing": (Missing.REPORTS,)},
        ["due", "unknown"],
        f"It is due, and shard 7 belongs to node x@host. {NO_REPORTS}",
    ),
    "claimed, and the reports are unreachable": (
        {"claimed": True, "owner": UNHEARD, "missing": (Missing.REPORTS,)},
        ["claimed", "unknown"],
        f"It is claimed by node x@host. {NO_REPORTS}",
    ),
    "behind others, and all else is unreachable": (
        {"waiting": BEHIND, "owner": UNHEARD, "missing": tuple(Missing)},
        ["behind", "unknown", "unknown"],
        f"It waits behind 3 due jobs of shard 7, owned by node x@host. {NO_REPORTS} "
        "The master with the queue's own keys is unreachable: the use of its rate limit is unknown.",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_every_answer(case):
    found, kinds, text = ANSWERS[case]
    answer = why(DiagnosisFacts("42", SHARD, NOW, **found))
    assert answer.text == text
    assert [reason.kind for reason in answer.reasons] == kinds
    assert answer.kind == kinds[0]


def test_every_kind_has_a_case_and_its_row_in_the_docs():
    kinds = {kind for _, kinds, _ in ANSWERS.values() for kind in kinds}
    named = why.__doc__.partition("Kinds: ")[2].replace(",", " ").replace(".", " ").split()
    assert kinds == set(named)
    assert all(f"| `{kind}` |" in PAGE for kind in kinds)
