"""The steps of a push, for threads and for event loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.steps import Block, Steps

from .admission import Admission, ShardCall
from .durability import Durability
from .push import Sender, Stored, push_call, retried, taken, turns
from .push_drops import Dropped, DroppedCallReporter


class PushSteps:
    """Makes the steps of pushes to one store."""

    def __init__(self, client: Client, admission: Admission, durability: Durability) -> None:
        self._client = client
        self._admission = admission
        self._durability = durability
        #: Called with the calls that a push drops by a policy.
        self.dropped: Dropped | None = None

    def push(
        self,
        sender: Sender,
        queue: QueueSpec,
        jobs: Sequence[NewJob],
        pauses: Iterable[float],
        stored: Stored | None = None,
    ) -> Steps[None]:
        """See ``RedisStore.push``. ``sender`` is not used by another push meanwhile."""
        left = iter(pauses)
        for turn in turns(queue, jobs):
            calls = [
                ShardCall(queue, shard, push_call(queue, shard, sender, chunk))
                for shard, chunk in turn.items()
            ]
            reporter = self._reporter(queue, turn)
            yield from retried(left, partial(self._send, calls, turn, stored, reporter))
        if jobs:
            # All shards of a Redis share one replication stream, so confirming the last write confirms all.
            yield from self._durability.confirm_steps(self._client, calls[0].shard)

    def _reporter(
        self, queue: QueueSpec, turn: Mapping[ShardRef, Sequence[NewJob]]
    ) -> DroppedCallReporter | None:
        if not (queue.policy and self.dropped):
            return None
        return DroppedCallReporter(self._client, queue, turn, self.dropped)

    def _send(
        self,
        calls: Sequence[ShardCall],
        turn: Mapping[ShardRef, Sequence[NewJob]],
        stored: Stored | None,
        reporter: DroppedCallReporter | None,
    ) -> Steps[None]:
        replies = yield from self._admission.reply_steps(calls)
        if stored is not None:
            stored(taken(turn, replies))
        if reporter is not None and reporter.finds_drops(replies):
            yield Block(partial(reporter.read, replies))
        raise_refused(replies)
