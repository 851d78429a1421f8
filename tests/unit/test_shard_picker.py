"""Schedulers of the user's, in a node with real threads."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.worker.lane import ShardPicker
from tests.unit.nodes import SHARDS
from tests.waiting import eventually

EARLY, LATE, FUTURE = SHARDS[:3]
DUE = {LATE: 20.0, EARLY: 10.0, FUTURE: 200.0}


def test_only_due_shards_are_handed_over():
    """P6: what is due later is the lane's business."""
    seen = []

    def pick(due, now):
        seen.append((dict(due), now))

    assert ShardPicker(pick, "lane-0").pick(DUE, 100.0) is None
    assert seen == [({EARLY: 10.0, LATE: 20.0}, 100.0)]
    assert ShardPicker(lambda due, now: max(due), "lane-0").pick({FUTURE: 200.0}, 100.0) is None
    assert ShardPicker(lambda due, now: max(due), "lane-0").pick({}, 100.0) is None


@pytest.mark.parametrize("answer", [FUTURE, ShardRef("other", 0), "q/0", 7, [], {}])
def test_an_answer_that_is_no_due_shard_is_logged_once_and_replaced_by_lag(answer, caplog):
    """P6: the answer is checked."""
    answers = [answer, answer, LATE, answer]
    picker = ShardPicker(lambda due, now: answers.pop(0), "lane-0")
    assert [picker.pick(DUE, 100.0) for _ in range(4)] == [EARLY, EARLY, LATE, EARLY]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "lowkiq_scheduler" in caplog.text


def test_an_error_of_a_scheduler_is_logged_once_and_replaced_by_lag(caplog):
    """P6: no stop of the worker."""
    picker = ShardPicker(lambda due, now: 1 / 0, "lane-0")
    assert [picker.pick(DUE, 100.0) for _ in range(3)] == [EARLY] * 3
    assert (len(caplog.records), "ZeroDivisionError" in caplog.text) == (1, True)


def test_a_node_goes_on_with_a_scheduler_that_takes_the_largest_of_nothing(node):
    """P6: ``max(due)`` ended the worker with status 70 where nothing waited."""
    one = node(lanes=1, scheduler=lambda: lambda due, now: max(due))
    one.start()
    one.store.push(SHARDS[1], "1")
    one.ran("1")
    assert one.host.stops == []


def test_a_shard_that_is_not_due_is_not_asked_again_and_again(node):
    """P6: a scheduler that returned it made 1,000 claims a second."""
    asked = []

    def first(due, now):
        asked.append(now)
        return SHARDS[0]

    one = node(lanes=1, scheduler=lambda: first)
    one.store.push(SHARDS[0], "later", perform_in=time.time() + 3600)
    one.start()
    one.store.push(SHARDS[1], "now")
    one.ran("now")
    eventually(lambda: one.runtime._lanes[0]._idle)
    assert len(asked) < 10
    assert {shard for shard, _ in one.store.claims} == {SHARDS[1]}
