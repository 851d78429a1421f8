"""Replies that no script of ours gives: an error of the store, which the threads of a worker outlive."""

from __future__ import annotations

import pytest
import redis
from redis import exceptions

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.errors import script_error, store_error
from celery_lowkiq.store.exchange import SingleServer
from celery_lowkiq.store.records import UnexpectedReply
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load


class Lying(SingleServer):
    """Answers each script with the same reply."""

    def __init__(self, reply):
        super().__init__(redis.Redis())
        self._reply = reply

    def address(self):
        return "here"

    def send(self, commands):
        return [self._reply for _ in commands]


def lying_store(reply):
    return RedisStore(redis.Redis(), sending=lambda servers: Client(Lying(reply)))


@pytest.mark.parametrize(
    "code", ["SHARDS", "FORMAT", "FULL 1 1", "NOTOWNER", "DAMAGED", "ERR", "NOPERM", "LOADING", "WRONGTYPE"]
)
def test_of_an_error_without_end_the_beginning_is_told(code):
    """A number of shards with 100,000 digits stood in the log, and in the error of each call."""
    told = exceptions.ResponseError(f"{code} {'9' * 100_000}")
    for error in (store_error(told), script_error("lowkiq:1:{q:0}:meta", told)):
        assert len(str(error)) < 2000


def test_a_number_of_tokens_is_a_number():
    """A text for it ended the lane that compared it, and the worker with it."""
    with pytest.raises(UnexpectedReply):
        lying_store([b"x", b"0"]).tokens(TokenRequest("q", "me 1", 1, 5.0, wanted=1))


def test_the_only_server_that_is_unreachable_is_raised():
    client = Client(Lying(exceptions.ReadOnlyError("You can't write against a read only replica.")))
    for ask in (
        lambda: client.each({"a": load("find_jobs").call_many(["a"])}),
        lambda: client.each_part(["a"], 10, load("find_jobs").call_many),
        lambda: client.each_command({"a": ("HGET", "a", "x")}),
        lambda: client.each_pair({"a": ("HGET", "a", "x")}, ("TIME",)),
    ):
        with pytest.raises(StoreUnavailable):
            ask()


@pytest.mark.parametrize("reply", [b"x", 1, None, [1], [], {"maxmemory": "x"}])
def test_what_masters_say_about_themselves_may_be_foreign(reply):
    with pytest.raises(UnexpectedReply):
        lying_store(reply).masters([ShardRef("q", 0)])
