"""The token bucket of a limited queue: one for all nodes, by Redis's clock."""

from __future__ import annotations

import time
from itertools import count

import pytest

from celery_lowkiq.rules.policies import TokenRequest, Tokens
from celery_lowkiq.store.keys import tokens_key
from tests.waiting import eventually

SLOW = 1 / 3600
_numbers = count(1)


def take(store, wanted=0, surplus=0, holder="me", rate=SLOW, number=None):
    number = next(_numbers) if number is None else number
    return store.tokens(TokenRequest("orders", holder, number, rate, wanted, surplus))


def plant(client, left, seconds_ago=0.0):
    now = int((time.time() - seconds_ago) * 1e6)
    client.hset(tokens_key("orders"), "left", f"{left} {now}")


def test_a_slow_queue_has_one_token_for_all_who_ask(store):
    first = take(store, wanted=5)
    assert (first.granted, first.wait) == (1, pytest.approx(3600, abs=5))
    assert take(store, wanted=1, holder="other").granted == 0


def test_a_fast_queue_gathers_a_tenth_of_a_second(store):
    assert take(store, wanted=1000, rate=50).granted == 5


def test_tokens_come_at_the_rate(store, client):
    take(store, wanted=1)
    plant(client, 0, seconds_ago=1800)
    assert take(store, wanted=1).wait == pytest.approx(1800, abs=5)
    plant(client, 0, seconds_ago=3601)
    assert take(store, wanted=1).granted == 1


def test_they_come_while_nobody_looks(store):
    began = time.monotonic()
    taken = take(store, wanted=1, rate=20).granted
    while taken < 10:
        taken += eventually(lambda: take(store, wanted=1, rate=20).granted)
    # A full bucket has two.
    assert time.monotonic() - began >= (10 - 2) / 20 * 0.9


def test_a_surplus_comes_back_for_others(store):
    assert take(store, wanted=1).granted == 1
    assert take(store, surplus=1) == Tokens(0, 0.0)
    assert take(store, wanted=1, holder="other").granted == 1


def test_a_bucket_never_runs_over(store):
    take(store, surplus=100)
    assert take(store, wanted=100).granted == 1


def test_a_repeated_request_takes_nothing_more(store):
    assert take(store, wanted=3, rate=50, number=7).granted == 3
    assert take(store, wanted=3, rate=50, number=7).granted == 3
    assert take(store, wanted=9, rate=SLOW, holder="other").granted == 1


def test_a_repeated_return_gives_nothing_more(store):
    assert take(store, wanted=4, rate=40).granted == 4
    take(store, surplus=1, rate=SLOW, number=10**6)
    assert take(store, wanted=1, rate=SLOW, holder="other").granted == 1
    take(store, surplus=1, rate=SLOW, number=10**6)
    assert take(store, wanted=1, rate=SLOW, holder="other").granted == 0


def test_a_request_older_than_the_last_gets_nothing(store):
    take(store, surplus=1, number=9)
    assert take(store, wanted=1, number=8).granted == 0
    assert take(store, wanted=1, number=10).granted == 1


def test_a_clock_that_was_set_back_costs_no_token(store, client):
    plant(client, 1, seconds_ago=-1000)
    assert take(store, wanted=1).granted == 1


@pytest.mark.parametrize("planted", ["nan 5", "x", "-inf 5", "1e400 5", ""])
def test_what_was_planted_does_not_last(store, client, planted):
    client.hset(tokens_key("orders"), "left", planted)
    client.hset(tokens_key("orders"), "by me", "x")
    take(store, wanted=1)
    assert take(store, surplus=1).granted == 0
    assert take(store, wanted=5).granted == 1


def test_holders_of_long_ago_are_forgotten_and_so_is_a_full_bucket(store, client):
    client.hset(tokens_key("orders"), mapping={"by old": "5 1 1000", "left": f"0 {int(time.time() * 1e6)}"})
    take(store, wanted=1)
    assert set(client.hkeys(tokens_key("orders"))) == {b"left", b"rate", b"by me"}
    assert 3600 < client.ttl(tokens_key("orders")) <= 7200
