"""What is damaged, and what may be repaired by itself."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Layout, ShardRef, shard_of
from celery_lowkiq.rules.repairs import Condition, Repaired, can_restore_meta, damages, said_count
from celery_lowkiq.store.keys import SHARD_KEYS

SHARD = ShardRef("orders", 1)
MINE = [str(n) for n in range(100) if shard_of(str(n), 4) == SHARD.index]


def condition(shards="4", wrong=(), urgent=0, **counts):
    return Condition(SHARD, shards, True, urgent, tuple(wrong), dict.fromkeys(SHARD_KEYS, 0) | counts)


def texts(found):
    return [damage.text for damage in damages(found, Layout(4))]


def test_a_shard_that_was_never_used_is_sound():
    assert texts(condition("")) == []


def test_a_shard_in_use_is_sound():
    found = condition(
        jobs=3, due=1, due_prioritized=1, by_priority=1, urgent=1, due_paused=1, paused=2, failed=1, errors=1
    )
    assert texts(found) == []


@pytest.mark.parametrize(
    "found, text",
    [
        (condition("", jobs=1, due=1), "meta has no number of shards, the queue has 4"),
        (condition("8", jobs=1, due=1), "meta has '8' shards, the queue has 4"),
        (condition("8"), "meta has '8' shards, the queue has 4"),
        (condition(jobs=2, due=1), "2 jobs wait, 1 + 0 + 0 + 0 have a due time"),
        (condition(processing=1), "1 jobs are in processing, 0 are claimed"),
        (condition(jobs=1, due_prioritized=1), "1 jobs are ordered by priority, 0 have one"),
        (condition(jobs=1, due_paused=1), "1 jobs wait as paused, but no id is paused"),
        (condition(spill_order=2, spill=2), "2 payloads in spill_order belong to no job"),
        (condition(wrong=["due"]), "the key due has the wrong type"),
        (condition("", wrong=["meta"], jobs=1, due=1), "the key meta has the wrong type"),
        (condition(wrong=["due"], jobs=1), "the key due has the wrong type"),
    ],
)
def test_what_is_damaged(found, text):
    assert texts(found) == [text]


@pytest.mark.parametrize("says", ["", "x", "-1", "0", "99999", "\u0664"])
def test_a_shard_that_says_nothing_may_be_told(says):
    assert Layout.parse(says) is None
    assert can_restore_meta(SHARD, says, Layout(4), MINE)
    assert can_restore_meta(SHARD, says, Layout(4), [])


@pytest.mark.parametrize(
    "says, registered, ids",
    [
        ("8", Layout(4), MINE),
        ("4>8", Layout(4), MINE),
        ("", Layout(8), MINE),
        ("", Layout(1), []),
        ("", Layout(4, 2), []),
        ("closed", Layout(4), []),
        ("", Layout(4), ["of another shard", *(str(n) for n in range(10))]),
    ],
)
def test_what_cannot_be_told(says, registered, ids):
    assert not can_restore_meta(SHARD, says, registered, ids)


def test_the_shards_contradict_a_registry_only_together():
    mine, unused = condition(jobs=1, due=1), condition("")
    assert said_count([mine, unused]) == 4
    assert said_count([mine, condition("8", jobs=1)]) is None
    assert said_count([unused, condition("closed", jobs=1)]) is None
    assert said_count([unused]) is None


def test_what_was_done_in_words():
    assert Repaired(SHARD).text == ""
    done = Repaired(SHARD, ("due",), undated=2, mended=1, lost_waiting=3, lost_dead=1)
    assert done.lost == 4
    assert done.text == (
        "the key due had the wrong type and was deleted; 2 waiting jobs are due now because their due times "
        "were lost; 1 entries were rewritten from other keys; 3 waiting jobs are LOST: their payloads are "
        "gone; 1 dead jobs are LOST: their payloads are gone"
    )
