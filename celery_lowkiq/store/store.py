"""Typed methods over the scripts that change jobs and leases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from celery_lowkiq.rules.models import (
    Claim,
    Due,
    InHand,
    Lease,
    LeaseState,
    NewJob,
    QueueSpec,
    Settled,
    ShardRef,
    Verdict,
    shard_of,
)

from .calls import claimed_calls, end_calls
from .client import Client, ShardsDiffer, raise_refused
from .durability import Durability
from .keys import channel, nodes_key, shard_keys
from .pushing import Sender, chunked, push_call
from .records import (
    id_bytes,
    number_text,
    pairs,
    parse_id,
    parse_members,
    parse_processing,
    parse_time,
    parse_whole,
)
from .registry import Registry
from .scripts import Call, Value, load
from .subscription import PushSubscription

#: What a claim takes of one id, and of all ids together before it leaves the next one.
CLAIM_PAYLOADS = 1000
CLAIM_BYTES = 1024 * 1024
#: How often a shard may change its count between admitting a call and running it.
ADMISSIONS = 5
LEASE_FIELDS = ("owner", "epoch", "counter", "server")
#: Kinds of claims, as ``claim.lua`` calls them.
SUSPECT, ONLY_SUSPECTS = 1, 2


FAST = Durability()


class RedisStore:
    """Jobs and leases in Redis. Safe to share between threads, not across a fork."""

    def __init__(self, client: redis.Redis, durability: Durability = FAST) -> None:
        self.client = Client(client)
        self._durability = durability
        self._registry = Registry(self.client)
        self._senders: list[Sender] = []

    def close(self) -> None:
        """Close all connections."""
        self.client.redis.connection_pool.disconnect()

    # -- calls

    def push(self, queue: QueueSpec, jobs: Sequence[NewJob]) -> None:
        """Merge jobs into the queue: one round trip for each 1,000 jobs of the fullest shard.

        Raises ShardCountMismatch, StoreFull, or StoreUnavailable: then the outcome may be unknown, and
        some shards may have taken their part. To push the same jobs again is safe.
        """
        by_shard: dict[ShardRef, list[NewJob]] = {}
        for job in jobs:
            by_shard.setdefault(ShardRef(queue.name, shard_of(job.id, queue.shards)), []).append(job)
        waiting = {shard: chunked(part) for shard, part in by_shard.items()}
        with self._sender() as sender:
            # One chunk of a shard at a time: a chunk that was refused must not be overtaken by the next.
            while turn := {
                shard: chunk for shard, chunks in waiting.items() if (chunk := next(chunks, None))
            }:
                self._admitted(queue, [(s, push_call(queue, s, sender, chunk)) for s, chunk in turn.items()])
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

    def _admitted(self, queue: QueueSpec, calls: list[tuple[ShardRef, Call]]) -> list[Any]:
        """Replies of calls that name the shard count, registering shards that do not know it yet."""
        replies = self.client.calls([call for _, call in calls])
        for position, (shard, call) in enumerate(calls):
            attempts = iter(range(ADMISSIONS))
            while isinstance(replies[position], ShardsDiffer) and next(attempts, None) is not None:
                self._registry.admit(queue, shard)
                (replies[position],) = self.client.calls([call])
        return raise_refused(replies)

    # -- leases

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState]:
        """Leases of the shards as they stand now, in one round trip."""
        if not shards:
            return []
        server, replies = self.client.on_server(
            [("HMGET", shard_keys(shard)["lease"], *LEASE_FIELDS) for shard in shards]
        )
        return [
            LeaseState(parse_id(owner), parse_whole(epoch), parse_whole(counter), server, parse_id(given_on))
            for owner, epoch, counter, given_on in ([field or b"" for field in reply] for reply in replies)
        ]

    def acquire(
        self, queue: QueueSpec, shard: ShardRef, owner: str, seen: LeaseState, known_epoch: int
    ) -> Lease:
        """Take the shard if its lease is still as ``seen``, and recover what was in processing.

        Raises NotOwner when the lease has changed since, ShardCountMismatch, StoreError.
        """
        call = load("acquire").call(
            shard_keys(shard),
            owner=owner,
            seen_owner=id_bytes(seen.owner),
            seen_epoch=seen.epoch,
            seen_counter=seen.counter,
            seen_server=seen.server,
            known_epoch=known_epoch,
            shards=queue.shards,
            merge=queue.merge.value,
            max_crashes=queue.max_crashes,
            poison_error=queue.poison_error,
        )
        ((epoch, server),) = self._admitted(queue, [(shard, call)])
        return Lease(shard, owner, int(epoch), server.decode())

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
            _owned("renew", lease, stopping=int(stopping), server=server)
            for lease, server in zip(leases, servers, strict=True)
        ]
        return [reply == 1 for reply in self.client.all(calls)]

    def release(self, lease: Lease) -> bool:
        """Give the shard up; False when jobs of it are still in processing. Raises NotOwner."""
        call = _owned("release", lease, channel=channel(lease.shard.queue), index=lease.shard.index)
        return bool(self.client.call(call) == 1)

    def beat(self, queues: Sequence[str], owner: str, lanes: int) -> list[dict[str, tuple[int, int]]]:
        """Move the node's heartbeat in each queue, in one round trip; lanes and counter of all nodes."""
        member = f"{owner} {lanes}"
        calls = [load("beat").call({"nodes": nodes_key(queue)}, member=member) for queue in queues]
        return [parse_members(reply) for reply in self.client.all(calls)]

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        """Remove heartbeats, named by owner and lanes."""
        self.client.commands([("HDEL", nodes_key(queue), *(f"{owner} {lanes}" for owner, lanes in members))])

    # -- batches

    def claim(
        self,
        queue: QueueSpec,
        lease: Lease,
        request: int,
        in_hand: InHand | None = None,
        suspects: bool = True,
    ) -> Claim:
        """Move up to ``queue.batch_size`` due jobs to processing; the same ``request`` gives the same batch.

        At most 1,000 payloads or 1 MiB of an id, lowest scores first; the rest stays waiting. What is
        in processing of other claims than those ``in_hand`` goes back. A suspect is a batch of its own;
        without ``suspects`` none is taken. Raises NotOwner, StoreUnavailable.
        """
        call = _owned(
            "claim",
            lease,
            merge=queue.merge.value,
            request=request,
            last=in_hand.last if in_hand else 0,
            open=_open(in_hand),
            limit=queue.batch_size,
            max_payloads=CLAIM_PAYLOADS,
            max_bytes=CLAIM_BYTES,
            suspects=int(suspects),
        )
        now, next_due, number, kind, *batch = self.client.call(call)
        calls = batch.pop() if len(batch) % 2 else []
        jobs = claimed_calls([parse_processing(job_id, record) for job_id, record in pairs(batch)], calls)
        jobs.sort(key=lambda job: (job.perform_in, id_bytes(job.id)))
        return Claim(
            number=number if jobs else 0,
            jobs=tuple(jobs),
            now=float(now),
            next_due=parse_time(next_due),
            suspect=kind == SUSPECT,
            suspect_due=kind == ONLY_SUSPECTS,
        )

    def forgive(self, lease: Lease) -> None:
        """Take back the deaths that were counted for this lease's owner: it lives."""
        self.client.call(load("forgive").call(shard_keys(lease.shard), epoch=lease.epoch))

    def settle(self, queue: QueueSpec, lease: Lease, verdicts: Sequence[Verdict]) -> Settled:
        """End claimed jobs, in one change. Raises NotOwner, StoreUnavailable.

        The records of ended calls go first: a job that comes back without them runs once more, but a record
        that outlived its job would give its call the outcome of another.
        """
        rest = [value for verdict in verdicts for value in _verdict_values(verdict)]
        ended = [run for verdict in verdicts for run in verdict.ended]
        calls = [end_calls(lease, ended)] if ended else []
        *_, reply = self.client.all([*calls, _owned("settle", lease, rest, merge=queue.merge.value)])
        now, next_due, *ids = reply
        return Settled(frozenset(parse_id(job_id) for job_id in ids), float(now), parse_time(next_due))

    # -- waiting for work

    def next_due(self, shards: Sequence[ShardRef], in_hand: Sequence[InHand] = ()) -> list[Due]:
        """Smallest claimable ``perform_in`` of each shard, in one round trip; now, when something is left
        of other claims than those ``in_hand``.
        """
        hands: Sequence[InHand | None] = in_hand or [None] * len(shards)
        calls = [
            load("next_due").call(shard_keys(shard), open=_open(hand))
            for shard, hand in zip(shards, hands, strict=True)
        ]
        return [Due(parse_time(next_due), float(now)) for now, next_due in self.client.all(calls)]

    def subscribe(self, queues: Sequence[QueueSpec]) -> PushSubscription:
        """Listen to pushes on the queues. Raises StoreUnavailable."""
        return PushSubscription(self.client.redis, [queue.name for queue in queues])


def _open(in_hand: InHand | None) -> str:
    return "any" if in_hand is None else " ".join(map(str, in_hand.open))


def _owned(name: str, lease: Lease, rest: Sequence[Value] = (), **args: Value) -> Call:
    return load(name).call(shard_keys(lease.shard), rest, owner=lease.owner, epoch=lease.epoch, **args)


def _verdict_values(verdict: Verdict) -> Iterator[Value]:
    yield from (id_bytes(verdict.id), verdict.claim, verdict.fate.value, verdict.retry_count)
    yield from (number_text(verdict.delay), verdict.error, len(verdict.bad))
    for bad in verdict.bad:
        yield from (-1 - bad.position, b"") if bad.error is None else (bad.position, bad.error)
