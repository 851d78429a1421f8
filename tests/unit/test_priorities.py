"""Which due job of a shard has its turn first, and when a limited id may run again."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.policies import token_at, turn
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.script import load


def in_turn(*jobs: tuple[int, float], max_wait: float = 60) -> list[tuple[int, float]]:
    """Jobs, each a priority and when it is due, by their turns at the time 100."""
    return sorted(jobs, key=lambda job: turn(*job, now=100, max_wait=max_wait))


def test_the_more_urgent_come_first_and_of_one_priority_the_oldest():
    assert in_turn((9, 45), (5, 50), (0, 99), (5, 41)) == [(0, 99), (5, 41), (5, 50), (9, 45)]


def test_what_is_due_for_longer_than_it_may_wait_comes_before_all():
    assert in_turn((0, 35), (0, 50), (9, 30), (5, 20), (1, 45)) == [
        (5, 20),
        (9, 30),
        (0, 35),
        (0, 50),
        (1, 45),
    ]


def test_who_may_wait_for_no_time_goes_by_age():
    assert in_turn((0, 99), (9, 98), max_wait=0) == [(9, 98), (0, 99)]


@pytest.mark.parametrize(
    "rate, full_at, at",
    [(0.5, 102, 102), (1 / 60, 160, 160), (30, 100, pytest.approx(100 - 2 / 30)), (100, 100, 99.91)],
)
def test_an_id_has_a_token_when_all_but_one_of_them_are_still_to_come(rate, full_at, at):
    assert token_at(full_at, rate) == at


@pytest.mark.parametrize("policy, sent", [("", False), ("rate=5 burst=1", True)])
def test_keys_of_policies_go_to_those_who_have_one(policy, sent):
    keys = shard_keys(ShardRef("orders", 0))
    call = load("claim").call(
        keys,
        **dict.fromkeys(("owner", "epoch", "merge", "request", "last", "open", "limit"), 1),
        **dict.fromkeys(("max_payloads", "max_bytes", "suspects", "max_wait"), 1),
        policy=policy,
    )
    assert (keys["buckets"] in call.keys) == sent
    assert keys["due_prioritized"] in call.keys
