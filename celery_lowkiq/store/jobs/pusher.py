"""Pushes jobs to their shards, and repeats what was refused or may be lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from celery_lowkiq.rules.errors import LowkiqError, QueueResharded, StoreUnavailable
from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.replies import reads_replies

from .admission import Admission, ShardCall
from .durability import Durability, Level, Pushed, part_of
from .push import Sender, Signer, Stored, push_call, refused, retried, taken, turns
from .push_drops import Dropped, DroppedCallReporter


@reads_replies
class Pusher:
    """Pushes to one store."""

    def __init__(self, client: Client, admission: Admission, durability: Durability) -> None:
        self._client = client
        self._admission = admission
        self._durability = durability
        #: Called with the calls that a push drops by a policy.
        self.dropped: Dropped | None = None
        #: None: nothing is signed.
        self.signer: Signer | None = None
        # Stored layouts of queues that differed from those of calls.
        self._layouts: dict[str, Layout] = {}
        # Addresses of servers that support the durability.
        self._checked: set[str | None] = set()

    def push(
        self,
        sender: Sender,
        queue: QueueSpec,
        jobs: Sequence[NewJob],
        pauses: Iterable[float],
        stored: Stored | None = None,
    ) -> None:
        """See ``RedisStore.push``. ``sender`` is not used by another push meanwhile."""
        left, waiting = iter(pauses), jobs
        while waiting:
            layout = self._layouts.get(queue.name)
            as_stored = queue if layout is None else queue.with_layout(layout)
            waiting = self._push(sender, as_stored, waiting, left, stored)

    def _push(
        self,
        sender: Sender,
        queue: QueueSpec,
        jobs: Sequence[NewJob],
        pauses: Iterator[float],
        stored: Stored | None,
    ) -> Sequence[NewJob]:
        """Push jobs; return those that shards refused since the queue has another number of shards."""
        rest = iter(turns(queue, jobs))
        confirms = self._durability.level is not Level.FAST
        for turn in rest:
            if confirms:
                self._check_durability(turn, sender)
            before = next(sender.numbers) if confirms else 0
            calls = [
                ShardCall(queue, shard, push_call(queue, shard, sender, chunk, self.signer))
                for shard, chunk in turn.items()
            ]
            reporter = self._reporter(queue, turn)
            replies = retried(pauses, partial(self._send, calls, turn, stored, reporter))
            if confirms:
                # Before the next turn: its numbers would hide that a failover has lost this one.
                answers = zip(turn, replies, strict=True)
                there = [shard for shard, reply in answers if not isinstance(reply, QueueResharded)]
                push = Pushed(there, sender.id, before)
                self._durability.confirm(self._client, there, push=push)
            resharded = next((reply for reply in replies if isinstance(reply, QueueResharded)), None)
            if resharded is not None:
                later = [job for turn in rest for chunk in turn.values() for job in chunk]
                return [*refused(turn, replies), *later]
        return ()

    def _check_durability(self, shards: Iterable[ShardRef], sender: Sender) -> None:
        """Check servers that were not checked before. Raises ConfigurationError: nothing was stored."""
        new = {self._client.master_of(shard) for shard in shards} - self._checked
        if new and self._durability.check(self._client, shards, sender.id):
            self._checked |= new

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
    ) -> list[Any]:
        replies = self._admission.replies(calls)
        if stored is not None:
            stored(taken(turn, replies))
        if reporter is not None and reporter.finds_drops(replies):
            reporter.read(replies)
        for reply in replies:
            # Also when another shard's master is away, for the next call.
            if isinstance(reply, QueueResharded):
                self._layouts[reply.queue] = reply.layout
        _raise_refused(dict(zip(turn, replies, strict=True)))
        return replies


def _raise_refused(replies: Mapping[ShardRef, Any]) -> None:
    """Raise the first error, but QueueResharded. StoreUnavailable names the shards that lack their part, if
    others have stored theirs.
    """
    refused = {shard: reply for shard, reply in replies.items() if isinstance(reply, LowkiqError)}
    for error in refused.values():
        if isinstance(error, QueueResharded):
            continue
        if isinstance(error, StoreUnavailable) and len(refused) < len(replies):
            part = part_of(list(refused), len(replies))
            raise type(error)(f"calls may not be stored{part}, the others are: {error}") from error
        raise error
