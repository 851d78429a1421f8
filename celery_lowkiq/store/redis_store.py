"""Typed methods over the scripts that change jobs and leases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis

from celery_lowkiq.rules.claims import (
    AcquireRequest,
    Claim,
    ClaimRequest,
    Due,
    OpenClaims,
    SettleReply,
    SettleRequest,
)
from celery_lowkiq.rules.errors import LowkiqError, StoreError, StoreUnavailable
from celery_lowkiq.rules.health_checks import Server
from celery_lowkiq.rules.models import Lease, LeaseState, NewJob, QueueSpec, Settlement, ShardRef, shard_of
from celery_lowkiq.rules.rate import TokenRequest, Tokens, capacity
from celery_lowkiq.rules.reports import BeatResult, NodeUpdate
from celery_lowkiq.store.jobs.admission import Admission, ShardCall
from celery_lowkiq.store.jobs.announcements import PushSubscription
from celery_lowkiq.store.jobs.claims import (
    claim_call,
    claimed,
    open_claims,
    owned,
    settle_calls,
    settled,
    sound,
)
from celery_lowkiq.store.jobs.durability import Durability
from celery_lowkiq.store.jobs.push import Sender, Stored, chunked, push_call, taken, with_retries
from celery_lowkiq.store.jobs.push_drops import Dropped, DroppedCallReporter
from celery_lowkiq.store.leases.acquire import acquire_call, acquired
from celery_lowkiq.store.leases.heartbeats import report_calls, told
from celery_lowkiq.store.repairs.background import BackgroundRepairs
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.client import Client, WrongType, raise_refused
from celery_lowkiq.store.scripts.keys import (
    channel,
    nodes_key,
    report_key,
    reports_key,
    shard_keys,
    ticket_key,
    tokens_key,
)
from celery_lowkiq.store.scripts.records import (
    id_bytes,
    number_text,
    parse_id,
    parse_members,
    parse_time,
    parse_whole,
)
from celery_lowkiq.store.scripts.script import ScriptCall, load
from celery_lowkiq.store.scripts.server import read_memory_limit

#: How long a ticket is known, in s.
TICKET_SECONDS = 60
LEASE_FIELDS = ("owner", "epoch", "counter", "server", "leaving")

FAST = Durability()
#: Told of the replies of a push.
Hears = Callable[[Sequence[Any]], None]


class RedisStore:
    """Jobs and leases in Redis. Safe to share between threads, not across a fork."""

    def __init__(
        self, client: redis.Redis, durability: Durability = FAST, sending: type[Client] = Client
    ) -> None:
        self.client: Client = sending(client)
        self._durability = durability
        self._admission = Admission(self.client, Repairs(self.client))
        self._taking = Admission(self.client, BackgroundRepairs(self.client))
        self._senders: list[Sender] = []
        #: Hears of calls that a push drops by a policy of the task.
        self.dropped: Dropped | None = None

    def close(self) -> None:
        """Close all connections."""
        self.client.redis.connection_pool.disconnect()

    # -- calls

    def push(
        self,
        queue: QueueSpec,
        jobs: Sequence[NewJob],
        pauses: Iterable[float] = (),
        stored: Stored | None = None,
    ) -> None:
        """Merge jobs into the queue: one round trip for each 1,000 jobs of the fullest shard.

        While Redis is away, a round trip is repeated after each of the ``pauses`` (s), under its old number.
        ``stored`` is told after each round trip which jobs their shards have taken.
        Raises ShardCountMismatch, StoreFull, QueueFull, or StoreUnavailable: then the outcome may be unknown,
        and some shards may have taken their part. To push the same jobs again is safe.
        """
        by_shard: dict[ShardRef, list[NewJob]] = {}
        for job in jobs:
            by_shard.setdefault(ShardRef(queue.name, shard_of(job.id, queue.shards)), []).append(job)
        waiting = {shard: chunked(part) for shard, part in by_shard.items()}
        left = iter(pauses)
        with self._sender() as sender:
            # One chunk of a shard at a time: a chunk that was refused must not be overtaken by the next.
            while turn := {
                shard: chunk for shard, chunks in waiting.items() if (chunk := next(chunks, None))
            }:
                calls = [(s, push_call(queue, s, sender, chunk)) for s, chunk in turn.items()]
                hear = self._hears(queue, turn, stored)
                with_retries(left, lambda calls=calls, hear=hear: self.admitted(queue, calls, hear))  # type: ignore[misc]
        if by_shard:
            # All shards of a Redis are one stream: what was written last, confirms what came before.
            self._durability.confirm(self.client, next(iter(by_shard)))

    @contextlib.contextmanager
    def _sender(self) -> Iterator[Sender]:
        try:
            sender = self._senders.pop()
        except IndexError:
            sender = Sender()
        try:
            yield sender
        finally:
            self._senders.append(sender)

    def _hears(
        self, queue: QueueSpec, turn: Mapping[ShardRef, Sequence[NewJob]], stored: Stored | None
    ) -> Hears | None:
        drops = (
            DroppedCallReporter(self.client, queue, turn, self.dropped)
            if queue.policy and self.dropped
            else None
        )
        if stored is None:
            return None if drops is None else drops.hear

        def hear(replies: Sequence[Any]) -> None:
            stored(taken(turn, replies))
            if drops is not None:
                drops.hear(replies)

        return hear

    def admitted(
        self, queue: QueueSpec, calls: list[tuple[ShardRef, ScriptCall]], hear: Hears | None = None
    ) -> list[Any]:
        """Replies of calls that name the shard count; shards that do not know it are registered first.

        ``hear`` is called with all replies before the first error among them is raised.
        """
        replies = self._admission.replies([ShardCall(queue, shard, call) for shard, call in calls])
        if hear is not None:
            hear(replies)
        return raise_refused(replies)

    # -- leases

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState]:
        """Leases of the shards as they stand now, in one round trip. A key of another type is as no lease:
        whoever would take the shard is told.
        """
        if not shards:
            return []
        server, replies = self.client.commands_with_run_id(
            [("HMGET", shard_keys(shard)["lease"], *LEASE_FIELDS) for shard in shards]
        )
        return [
            LeaseState(
                parse_id(owner),
                parse_whole(epoch),
                parse_whole(counter),
                server,
                parse_id(given_on),
                leaving == b"1",
            )
            for owner, epoch, counter, given_on, leaving in (
                [field or b"" for field in reply or [b""] * len(LEASE_FIELDS)] for reply in replies
            )
        ]

    def acquire(
        self, queue: QueueSpec, shard: ShardRef, owner: str, seen: LeaseState, known_epoch: int
    ) -> Lease:
        """Only one of :meth:`acquire_all`; repairs are waited for.

        Raises NotOwner, ShardCountMismatch, StoreError.
        """
        wish = AcquireRequest(queue, shard, seen, known_epoch)
        (answer,) = self._acquired(self._admission, [wish], owner)
        return sound(answer)

    def acquire_all(self, wanted: Sequence[AcquireRequest], owner: str) -> list[Lease | LowkiqError]:
        """Take each shard whose lease is still as ``seen``, and recover what was in processing, in one round
        trip. Answers may be errors of their own: NotOwner when a lease has changed since, ShardCountMismatch,
        ShardRepairing when keys were lost: that takes a while, and goes on without the caller. Raises
        StoreUnavailable.
        """
        return self._acquired(self._taking, wanted, owner)

    @staticmethod
    def _acquired(
        admission: Admission, wanted: Sequence[AcquireRequest], owner: str
    ) -> list[Lease | LowkiqError]:
        replies = admission.replies(
            [ShardCall(one.queue, one.shard, acquire_call(one, owner)) for one in wanted]
        )
        return [acquired(one.shard, owner, reply) for one, reply in zip(wanted, replies, strict=True)]

    def renew(
        self, leases: Sequence[Lease], lapsed: Sequence[bool] = (), stopping: bool = False
    ) -> list[bool]:
        """Move the counter of each lease, in one round trip; False where it is no longer ours. One that is
        ``lapsed`` is renewed only by the server that gave it.
        """
        servers = [
            lease.server if late else ""
            for lease, late in zip(leases, lapsed or [False] * len(leases), strict=True)
        ]
        calls = [
            owned("renew", lease, stopping=int(stopping), server=server)
            for lease, server in zip(leases, servers, strict=True)
        ]
        # A damaged lease counts as lost; the others are still renewed.
        return [reply == 1 for reply in raise_refused([_renewed(r) for r in self.client.calls(calls)])]

    def release(self, lease: Lease, unsettled: bool = False) -> bool:
        """Give the shard up; False when jobs of it are still in processing, unless these may stay there,
        ``unsettled``. Raises NotOwner.
        """
        queue, index = lease.shard.queue, lease.shard.index
        call = owned("release", lease, channel=channel(queue), index=index, unsettled=int(unsettled))
        return bool(self.client.call(call) == 1)

    def beat(
        self, queues: Sequence[str], owner: str, lanes: int, news: NodeUpdate | None = None
    ) -> BeatResult:
        """Move the node's heartbeat in each queue, and write the news, in one round trip; lanes and counter
        of all nodes. News that are refused do not disturb the rest.
        """
        member = f"{owner} {lanes}"
        beats = [load("heartbeat").call({"nodes": nodes_key(queue)}, member=member) for queue in queues]
        replies = self.client.calls([*beats, *(report_calls(news) if news else [])])
        members = [parse_members(reply) for reply in raise_refused(replies[: len(beats)])]
        return BeatResult(members, told(news, replies[len(beats) :]) if news else None)

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        """Remove heartbeats, named by owner and lanes."""
        self.client.commands([("HDEL", nodes_key(queue), *(f"{owner} {lanes}" for owner, lanes in members))])

    def forget_report(self, owner: str) -> None:
        """Remove what a node said of itself."""
        self.client.commands([("DEL", report_key(owner)), ("ZREM", reports_key(), id_bytes(owner))])

    def take(self, ticket: str, name: str) -> str:
        """Who is to do what only one should: whoever took the ticket first. Known for a minute."""
        key = ticket_key(ticket)
        *_, taken_by = self.client.commands(
            [("HSETNX", key, "by", id_bytes(name)), ("EXPIRE", key, TICKET_SECONDS), ("HGET", key, "by")]
        )
        return parse_id(taken_by)

    # -- batches

    def exchange(
        self, settle: SettleRequest | None, claim: ClaimRequest | None
    ) -> tuple[SettleReply | StoreError | None, Claim | StoreError | None]:
        """End claimed jobs, then move due ones to processing, in one round trip.

        A claim takes at most 1,000 payloads or 1 MiB of an id, lowest scores first; the rest stays waiting.
        What is in processing of other claims than those in hand goes back. Answers may be errors of their
        own, as NotOwner; raises StoreUnavailable.
        """
        settling = settle_calls(settle) if settle is not None else []
        claiming = [claim_call(claim)] if claim is not None else []
        replies = self.client.calls([*settling, *claiming])
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply
        answer = settled(settle, replies[: len(settling)]) if settle is not None else None
        if claim is None:
            return answer, None
        claim_sent = ShardCall(claim.queue, claim.lease.shard, claiming[0])
        return answer, claimed(claim, self._admission.claim_reply(claim_sent, replies[-1]))

    def claim(
        self,
        queue: QueueSpec,
        lease: Lease,
        request: int,
        in_hand: OpenClaims | None = None,
        suspects: bool = True,
    ) -> Claim:
        """Only the second half of :meth:`exchange`, for one batch. Raises NotOwner, StoreUnavailable."""
        _, answer = self.exchange(None, ClaimRequest(queue, lease, request, in_hand, suspects))
        return sound(answer)

    def settle(self, queue: QueueSpec, lease: Lease, verdicts: Sequence[Settlement]) -> SettleReply:
        """Only the first half of :meth:`exchange`. Raises NotOwner, StoreUnavailable."""
        answer, _ = self.exchange(SettleRequest(queue, lease, tuple(verdicts)), None)
        return sound(answer)

    def retract_crashes(self, lease: Lease) -> None:
        """Take back the deaths that were counted for this lease's owner: it lives."""
        self.client.call(load("retract_crashes").call(shard_keys(lease.shard), epoch=lease.epoch))

    def tokens(self, asked: TokenRequest) -> Tokens:
        """Take tokens of a limited queue, or give some back; repeated, it changes nothing."""
        call = load("take_tokens").call(
            {"tokens": tokens_key(asked.queue)},
            holder=asked.holder,
            number=asked.number,
            rate=number_text(asked.rate),
            capacity=number_text(capacity(asked.rate)),
            wanted=asked.wanted,
            surplus=asked.surplus,
        )
        granted, wait = self.client.call(call)
        return Tokens(granted, float(wait))

    def memory(self) -> Server:
        """Redis's limit of memory, and what it does at that; unknown where INFO is forbidden."""
        return read_memory_limit(self.client)

    # -- waiting for work

    def next_due(self, shards: Sequence[ShardRef], in_hand: Sequence[OpenClaims] = ()) -> list[Due]:
        """Smallest claimable ``perform_in`` of each shard, in one round trip; now, when something is left
        of other claims than those ``in_hand``.
        """
        hands: Sequence[OpenClaims | None] = in_hand or [None] * len(shards)
        calls = [
            load("next_due").call(shard_keys(shard), open=open_claims(hand))
            for shard, hand in zip(shards, hands, strict=True)
        ]
        return [Due(parse_time(next_due), float(now)) for now, next_due in self.client.all(calls)]

    def subscribe(self, queues: Sequence[QueueSpec]) -> PushSubscription:
        """Listen to pushes on the queues. Raises StoreUnavailable."""
        return PushSubscription(self.client.redis, [queue.name for queue in queues])


def _renewed(reply: Any) -> Any:
    return 0 if isinstance(reply, WrongType) else reply
