"""Tests of ``worker/context.py``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.claims import run_count
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.policies import Tokens, capacity
from celery_lowkiq.worker.context import RateLimiter
from tests.unit.nodes import SHARDS, Q, once
from tests.waiting import eventually

OTHER = QueueSpec("other", shards=1)


@pytest.mark.parametrize("rate, most", [(0.01, 1), (10, 1), (50, 5), (1000, 100)])
def test_a_tenth_of_a_second_gathers_but_one_token_at_least(rate, most):
    assert capacity(rate) == most


@pytest.mark.parametrize("jobs, size, runs", [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (5, 1, 5)])
def test_a_run_costs_a_token_however_many_jobs_it_has(jobs, size, runs):
    assert run_count(jobs, size) == runs


def test_a_node_asks_again_when_a_token_comes_and_not_later_than_it_polls():
    limiter = RateLimiter(SimpleNamespace(monotonic=lambda: 100.0), "me", poll_interval=1.0, rates={"q": 5.0})
    for wait, until in ((0.2, 100.2), (3600.0, 101.0)):
        limiter.record("q", Tokens(0, wait))
        assert limiter.exhausted_until(100.0) == {"q": pytest.approx(until)}


@pytest.fixture
def limited(node):
    def make(tokens, **options):
        one = node(rates={"q": 5.0}, **options)
        one.store.bucket = tokens
        return one

    return make


def push(one, count, shard=SHARDS[0]):
    for number in range(count):
        one.store.push(shard, f"{shard.queue}-{number}")


def test_as_many_batches_run_as_there_are_tokens(limited):
    one = limited(2, lanes=1).start()
    push(one, 5)
    eventually(lambda: len(one.runner.ids) == 2 and one.store.token_requests[-1].wanted)
    assert len(one.store.waiting[SHARDS[0]]) == 3
    one.store.bucket = 3
    one.runtime.set_rate("q", 5.0)
    eventually(lambda: len(one.runner.ids) == 5)


def test_what_has_run_is_settled_though_there_is_no_token_for_more(limited):
    one = limited(1, lanes=1).start()
    push(one, 2)
    eventually(lambda: len(one.store.settled) == 1)


def test_other_queues_run_meanwhile(limited):
    one = limited(0, lanes=1, queues=[Q, OTHER]).start()
    push(one, 3)
    eventually(lambda: one.store.token_requests)
    push(one, 5, ShardRef("other", 0))
    one.ran(*(f"other-{n}" for n in range(5)))
    assert {request.queue for request in one.store.token_requests} == {"q"}


def test_a_lane_without_tokens_does_not_spin(limited):
    """Asked for the first job, and after the announcements that came meanwhile; then at each poll (60 s)."""
    one = limited(0, lanes=1, queues=[Q, OTHER]).start()
    push(one, 10)
    eventually(lambda: one.store.token_requests)
    push(one, 10, SHARDS[1])
    push(one, 1, ShardRef("other", 0))
    one.ran("other-0")
    assert len(one.store.token_requests) == 1


def test_a_surplus_goes_back(limited):
    """Nothing is there of what was announced; a look at the shard may take the announcement away."""
    one = limited(1, lanes=1).start()
    eventually(lambda: len(one.owns()) == 4)

    def announced():
        with one.store.lock:
            one.store.pushed.append((SHARDS[0], 1.0))
            one.store.lock.notify_all()
        return any(request.surplus for request in one.store.token_requests)

    eventually(announced)
    eventually(lambda: not one.store.pushed and one.store.bucket == 1)


def test_tokens_of_a_claim_that_failed_go_back(limited):
    one = limited(1, lanes=1)
    one.store.fail["claim"] = once(StoreError("no"))
    one.store.push(SHARDS[0], "left alone", announce=False)
    one.start()
    eventually(lambda: any(request.surplus for request in one.store.token_requests) and one.store.bucket == 1)


def test_tokens_that_cannot_go_back_are_a_warning_and_stop_nothing(limited, caplog):
    one = limited(1, lanes=1)
    one.store.fail["claim"] = once(StoreError("no"))
    tokens, refuse = one.store.tokens, once(StoreError("full"))

    def refuses_the_first_surplus(asked):
        if asked.surplus:
            refuse(False)
        return tokens(asked)

    one.store.tokens = refuses_the_first_surplus
    one.store.push(SHARDS[0], "left alone", announce=False)
    one.start()
    eventually(lambda: "1 tokens of queue q could not be returned: full" in caplog.text)
    one.store.bucket = 2
    one.runtime.set_rate("q", 5.0)
    one.store.push(SHARDS[1], "other")
    one.ran("other")


def test_a_lost_reply_is_asked_for_again_under_its_number(limited):
    one = limited(1, lanes=1)
    one.store.fail["tokens"] = once(StoreUnavailable("reply lost"))
    numbers = []
    tokens = one.store.tokens
    one.store.tokens = lambda asked: numbers.append(asked.number) or tokens(asked)
    one.start()
    push(one, 1)
    one.ran("q-0")
    assert numbers[:2] == [1, 1]


def test_a_limit_comes_and_goes_while_the_node_runs(node):
    one = node(lanes=1).start()
    push(one, 1)
    one.ran("q-0")
    assert one.store.token_requests == []
    one.runtime.set_rate("q", 1.0)
    one.store.push(SHARDS[1], "limited")
    eventually(lambda: one.store.token_requests)
    assert "limited" not in one.runner.ids
    one.runtime.set_rate("q", None)
    one.ran("limited")


def test_unlimited_queues_ask_for_no_tokens(limited):
    one = limited(0, lanes=2, queues=[Q, OTHER])
    one.start()
    push(one, 20, ShardRef("other", 0))
    one.ran(*(f"other-{n}" for n in range(20)))
    assert one.store.token_requests == []
