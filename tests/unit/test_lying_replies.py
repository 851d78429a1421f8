"""Replies that no script of ours gives: an error of the store, which the threads of a worker outlive."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.rate import TokenRequest
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.replies import UnexpectedReply

SHARD = ShardRef("q", 0)


class Lying(Client):
    """Answers each script with the same reply."""

    def __init__(self, reply):
        super().__init__(None)
        self._reply = reply

    def _send(self, commands):
        return [self._reply for _ in commands]


@pytest.mark.parametrize(
    "reply, ask",
    [
        ([b"server", []], lambda store: store.observe([SHARD])),
        ([[]], lambda store: store.beat(["q"], "w 1", 1, 1)),
        ([[[]], 0, b"4", 0, b"4"], lambda store: store.beat(["q"], "w 1", 1, 1)),
        ([b"x", b"0"], lambda store: store.tokens(TokenRequest("q", "me 1", 1, 5.0, wanted=1))),
    ],
    ids=["no lease", "no heartbeats", "heartbeats of two queues", "tokens"],
)
def test_each_question_has_one_answer_of_its_kind(reply, ask):
    """More or fewer answers, or a text for a number, ended ownership or a lane."""
    with pytest.raises(UnexpectedReply):
        ask(RedisStore(Lying(reply), sending=lambda client: client))
