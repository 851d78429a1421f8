"""Faults L1 to L10 that Lowkiq's source has, each reproduced there; here none may come back.

L4 is in test_actions, L6 in tests/worker/test_running, L7 in tests/unit/test_codec, L10 in test_hostile.
"""

from __future__ import annotations

import math

import pytest

from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.models import Fate
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import number_text

from .helpers import ONE, SHARD, claim, contents, dead, end, push, take, waiting


def test_l1_a_second_owner_destroys_nothing_that_is_in_flight(store):
    push(store, "1", ("in flight", 1), perform_in=1.0)
    claim(store, take(store, owner="first"))
    push(store, "1", ("newer", 2), perform_in=1.0)
    assert contents(claim(store, take(store, owner="second"))) == {"1": [("in flight", 1), ("newer", 2)]}


def test_l2_a_former_owners_settle_deletes_nothing_of_the_new_one(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    former = take(store, owner="former")
    claimed = claim(store, former)
    heir = take(store, owner="heir")
    again = claim(store, heir)
    with pytest.raises(NotOwner):
        end(store, former, claimed)
    assert Queries(store).stats(ONE).busy == 1
    assert end(store, heir, again).accepted == {"1"}


def test_l3_a_job_that_kills_its_owners_is_not_delivered_for_ever(store):
    push(store, "1", ("killer", 1), perform_in=1.0)
    deliveries = 0
    for number in range(20):
        deliveries += len(claim(store, take(store, owner=f"owner-{number}")).jobs)
    assert deliveries == 1 + ONE.max_crashes
    assert dead(store, "1") == [("killer", 1)]


@pytest.mark.parametrize("perform_in", [-1.0, 0.0, 1.0])
def test_l5_a_job_due_in_the_past_is_claimed(store, perform_in):
    push(store, "1", ("a", 1), perform_in=perform_in)
    assert contents(claim(store, take(store))) == {"1": [("a", 1)]}


def test_l5_a_command_with_nan_writes_nothing_before_it_fails(store, client):
    """Python refuses NaN at the call; should it come this far, no half of a job is left."""
    push(store, "0", ("registers", 1))
    with pytest.raises(Exception, match="float"):
        push(store, "1", ("a", 1), perform_in=math.nan)
    assert number_text(math.nan) == "nan"
    assert waiting(store, "1") is None
    assert not client.hexists(shard_keys(SHARD)["jobs"], "1")


def test_l8_the_smaller_score_stays_also_when_it_comes_second(store):
    push(store, "1", ("v", 5))
    push(store, "1", ("v", 3))
    assert waiting(store, "1") == [("v", 3)]


def test_l9_a_failure_repeated_after_a_lost_reply_leaves_one_copy(store):
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    for _ in range(3):
        end(store, lease, claimed, Fate.DIE, error=b"boom")
    assert dead(store, "1") == [("a", 1)]
    assert waiting(store, "1") == [("b", 2)]
    assert Queries(store).stats(ONE).failed == 1
