"""The store of calls, claims and leases: what producers and workers ask of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import redis

from celery_lowkiq.rules.claims import Claim, ClaimRequest, Due, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Call, Lease, LeaseState, QueueSpec, Renewed, Settlement, ShardRef
from celery_lowkiq.rules.policies import TokenRequest, Tokens, capacity
from celery_lowkiq.rules.topology import Master
from celery_lowkiq.rules.views import BeatResult, NodeReport, NodeUpdate
from celery_lowkiq.store.claims import (
    claim_call,
    claimed,
    open_claims,
    or_raise,
    owned,
    release_call,
    settle_calls,
)
from celery_lowkiq.store.client import Client, raise_refused
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.cluster_map import ClusterMap
from celery_lowkiq.store.durability import Durability
from celery_lowkiq.store.errors import WrongType
from celery_lowkiq.store.exchange import SingleServer
from celery_lowkiq.store.health import memory_limits, refused_commands
from celery_lowkiq.store.keys import nodes_key, report_key, reports_key, shard_keys, ticket_key, tokens_key
from celery_lowkiq.store.listener import PushSubscription
from celery_lowkiq.store.node_reports import beat_calls, heartbeat_reply, read_nodes, report_calls
from celery_lowkiq.store.push import Admission, Pusher, ShardCall
from celery_lowkiq.store.records import (
    id_bytes,
    number_text,
    parse_beats,
    parse_id,
    parse_seconds,
    parse_time,
    parse_whole,
    read_or_error,
    reads_replies,
)
from celery_lowkiq.store.repairs import BackgroundRepairs, Repairs
from celery_lowkiq.store.resharding import LEASE_SECONDS, Migrations, Mover
from celery_lowkiq.store.script import ScriptCall, load

#: Seconds for which a ticket is kept.
TICKET_SECONDS = 60

#: Leases that one script reads: about 0.6 ms of work for Redis.
OBSERVED_TOGETHER = 200
#: Leases that one script renews: about 0.4 ms of work for Redis.
RENEWED_TOGETHER = 100
#: Shards that one script looks into: about 0.4 ms of work for Redis.
LOOKED_INTO = 500

FAST = Durability()


@reads_replies
class RedisStore:
    """Jobs and leases in Redis: see :class:`worker.ports.Store`, whose methods have their docstrings there.

    Safe to share between threads, not across a fork.
    """

    def __init__(
        self,
        client: redis.Redis | ClusterMap,
        durability: Durability = FAST,
        sending: Callable[[SingleServer | ClusterClient], Client] = Client,
        lease_seconds: float = LEASE_SECONDS,
        prefix: str = "",
    ) -> None:
        """``prefix``: in front of all keys and channels; stores with different ones share nothing."""
        servers = ClusterClient(client) if isinstance(client, ClusterMap) else SingleServer(client)
        self.client: Client = sending(servers)
        self.client.prefix = prefix
        self._durability = durability
        self._lease_seconds = lease_seconds
        self._admission = Admission(self.client, Repairs(self.client), self._continue_migration)
        self._taking = Admission(self.client, BackgroundRepairs(self.client), self._continue_migration)
        self.pusher: Pusher = Pusher(self.client, self._admission, durability)

    def close(self) -> None:
        self.client.servers.close()

    def push(self, queue: QueueSpec, calls: Sequence[Call], *args: Any, **options: Any) -> None:
        """See ``Pusher.push``, which calls use directly."""
        self.pusher.push(queue, calls, *args, **options)

    def run_registered(self, queue: QueueSpec, calls: Iterable[tuple[ShardRef, ScriptCall]]) -> list[Any]:
        """Run scripts that check the number of shards, and return their replies.

        Shards without a number are registered first.
        """
        sent = {n: ShardCall(queue, shard, call) for n, (shard, call) in enumerate(calls)}
        found, errors = self._admission.outcomes(sent)
        raise_refused(list(errors.values()))
        return [found[n] for n in sent]

    # -- leases

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState | None]:
        # A key of the wrong type counts as no lease: an acquire of the shard reports it.
        parts, _ = self.client.each_part(
            shards,
            OBSERVED_TOGETHER,
            lambda part: load("read_leases").call_many([shard_keys(each)["lease"] for each in part]),
        )
        found = {shard: at for part, reply in parts for shard, at in zip(part, _states(*reply), strict=True)}
        return [found.get(shard) for shard in shards]

    def acquire(
        self, queue: QueueSpec, shard: ShardRef, owner: str, seen: LeaseState, known_epoch: int
    ) -> Lease:
        """Take one shard as :meth:`acquire_all` does, but wait for a repair.

        Raises NotOwner, QueueResharded, StoreError.
        """
        wish = LeaseWatch(queue, shard, seen, known_epoch=known_epoch)
        (answer,) = self._acquired(self._admission, [wish], owner)
        return or_raise(answer)

    def acquire_all(self, wanted: Sequence[LeaseWatch], owner: str) -> list[Lease | LowkiqError]:
        answers = self._acquired(self._taking, wanted, owner)
        self.client.check_reachable(answers)
        return answers

    @staticmethod
    def _acquired(
        admission: Admission, wanted: Sequence[LeaseWatch], owner: str
    ) -> list[Lease | LowkiqError]:
        calls = {one.shard: ShardCall(one.queue, one.shard, _acquire_call(one, owner)) for one in wanted}
        found, errors = admission.outcomes(calls)
        taken = {
            shard: Lease(shard, owner, int(epoch), server.decode())
            for shard, (epoch, server) in found.items()
        }
        return [errors.get(one.shard) or taken[one.shard] for one in wanted]

    def renew(self, leases: Sequence[Lease], stopping: bool = False, turn: int = 0) -> list[Renewed]:
        # The mark of a stopping owner is written for each lease by itself.
        answers = {} if stopping else _renew_plain(self.client, leases, turn)
        left = [n for n in range(len(leases)) if n not in answers]
        calls = {n: owned("renew", leases[n], stopping=int(stopping), turn=turn) for n in left}
        found, errors = self.client.each(calls, WrongType)
        # A damaged lease counts as lost; the others are still renewed.
        answers |= {n: False if isinstance(error, WrongType) else None for n, error in errors.items()}
        for n, server in found.items():
            answers[n] = server != 0 and replace(leases[n], server=server.decode())
        return [answers[n] for n in range(len(leases))]

    def release(self, lease: Lease, unsettled: bool = False) -> bool | None:
        call = release_call(lease, unsettled)
        return self.client.unless_unreachable(lambda: bool(self.client.call(call) == 1))

    def beat(
        self, queues: Sequence[str], owner: str, lanes: int, turn: int, news: NodeUpdate | None = None
    ) -> BeatResult:
        beats = beat_calls(self.client, queues, f"{owner} {lanes}" if lanes else "", turn)
        reports = report_calls(self.client, news) if news else {}
        found, errors = self.client.outcomes({**dict(enumerate(beats)), **reports})
        refused = [errors.pop(key) for key in reports if key in errors]
        self.client.reached(found, errors)
        parts = [parse_beats(found[n]) if n in found else [(None, None)] for n in range(len(beats))]
        answered = list(zip(queues, chain(*parts), strict=True))
        return BeatResult(
            [members for _, (members, _) in answered],
            [route for _, (_, route) in answered],
            refused[0] if refused else heartbeat_reply(news, found) if news else None,
        )

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        self.client.commands([("HDEL", nodes_key(queue), *(f"{owner} {lanes}" for owner, lanes in members))])

    def forget_report(self, owner: str) -> None:
        self.client.commands([("DEL", report_key(owner)), ("ZREM", reports_key(), id_bytes(owner))])

    def take(self, ticket: str, name: str) -> str:
        """Take a ticket for a command that only one worker executes. Return the name that took it first."""
        key = ticket_key(ticket)
        *_, taken_by = self.client.commands(
            [("HSETNX", key, "by", id_bytes(name)), ("EXPIRE", key, TICKET_SECONDS), ("HGET", key, "by")]
        )
        return parse_id(taken_by)

    # -- batches

    def exchange(
        self, settle: SettleRequest | None, claim: ClaimRequest | None
    ) -> tuple[SettleReply | StoreError | None, Claim | StoreError | None]:
        settling = settle_calls(settle) if settle is not None else None
        calls = settling.calls if settling is not None else []
        claiming = [claim_call(claim)] if claim is not None else []
        first = settling.tracker_calls if settling is not None else 0
        then, others = [*calls[first:], *claiming], []
        if settle is not None and claim is not None and claim.lease.shard != settle.lease.shard:
            # No tracker of the settle holds it up.
            then, others = calls[first:], claiming
        replies = self.client.calls_in_turn(calls[:first], then, others)
        self.client.check_reachable(replies)
        of_settle = replies[: len(calls)]
        answer = read_or_error(lambda: settling.reply(of_settle)) if settling is not None else None
        if claim is None:
            return answer, None
        sent = ShardCall(claim.queue, claim.lease.shard, claiming[0])
        found = read_or_error(lambda: claimed(claim, self._admission.claim_reply(sent, replies[-1])))
        self.client.check_reachable([found])
        return answer, found

    def claim(
        self,
        queue: QueueSpec,
        lease: Lease,
        request: int,
        in_hand: OpenClaims | None = None,
        suspects: bool = True,
    ) -> Claim:
        """Claim one batch. Raises NotOwner, StoreUnavailable."""
        _, answer = self.exchange(None, ClaimRequest(queue, lease, request, in_hand, suspects))
        return or_raise(answer)

    def settle(self, queue: QueueSpec, lease: Lease, settlements: Sequence[Settlement]) -> SettleReply:
        """Settle claimed jobs. Raises NotOwner, StoreUnavailable."""
        answer, _ = self.exchange(SettleRequest(queue, lease, tuple(settlements)), None)
        return or_raise(answer)

    def retract_crashes(self, lease: Lease) -> None:
        self.client.call(load("retract_crashes").call(shard_keys(lease.shard), epoch=lease.epoch))

    def tokens(self, asked: TokenRequest) -> Tokens | StoreError:
        call = load("take_tokens").call(
            {"tokens": tokens_key(asked.queue)},
            holder=asked.holder,
            number=asked.number,
            rate=number_text(asked.rate),
            capacity=number_text(capacity(asked.rate)),
            wanted=asked.wanted,
            surplus=asked.surplus,
        )
        found, errors = self.client.each({asked.queue: call})
        if errors:
            return errors[asked.queue]
        granted, wait = found[asked.queue]
        return Tokens(int(granted), parse_seconds(wait))

    def masters(self, shards: Sequence[ShardRef]) -> list[Master]:
        refused, _ = refused_commands(self.client, shards)
        replies = [
            (asked, *asked.ask({"info": ("INFO", "memory")})) for asked in self.client.servers.masters()
        ]
        self.client.check_reachable(error for _, _, errors in replies for error in errors.values())
        return [
            Master(asked.address, memory_limits(found), asked.slots, refused=refused.get(asked.address, {}))
            for asked, found, errors in replies
            if not isinstance(errors.get("info"), StoreUnavailable)
        ]

    def nodes(self) -> list[NodeReport]:
        return read_nodes(self.client)

    # -- migrations

    def mover(self, queue: QueueSpec) -> Mover:
        return Mover(self.client, queue, self._durability, lease_seconds=self._lease_seconds)

    def begin_migration(self, queue: str, shards: int) -> bool:
        return bool(self.client.unless_unreachable(lambda: Migrations(self.client, queue).begin(shards)))

    def _continue_migration(self, queue: QueueSpec) -> None:
        self.mover(queue).turn()

    # -- waiting for work

    def next_due(
        self, shards: Sequence[ShardRef], in_hand: Sequence[OpenClaims] = (), were_empty: Sequence[bool] = ()
    ) -> list[Due | ShardDamaged | None]:
        claims: Sequence[OpenClaims | None] = in_hand or [None] * len(shards)
        empty = [n for n, was_empty in enumerate(were_empty) if was_empty]
        dues: dict[int, Due | ShardDamaged | None] = {**_still_empty(self.client, shards, empty)}
        left = [n for n in range(len(shards)) if n not in dues]
        calls = {n: load("next_due").call(shard_keys(shards[n]), open=open_claims(claims[n])) for n in left}
        found, errors = self.client.each(calls, ShardDamaged)
        dues |= {n: Due(parse_time(due), parse_seconds(now)) for n, (now, due) in found.items()}
        dues |= {n: error if isinstance(error, ShardDamaged) else None for n, error in errors.items()}
        return [dues[n] for n in range(len(shards))]

    def count_due(self, shards: Sequence[ShardRef]) -> int:
        keys = [shard_keys(shard)[index] for shard in shards for index in ("due", "due_prioritized")]
        dues = self.next_due(shards)
        now = max((due.now for due in dues if isinstance(due, Due)), default=0.0)
        counts, _ = self.client.each_command({key: ("ZCOUNT", key, "-inf", number_text(now)) for key in keys})
        return sum(counts.values())

    def subscribe(self, queues: Sequence[QueueSpec]) -> PushSubscription:
        return PushSubscription(self.client, [queue.name for queue in queues])


def _acquire_call(wish: LeaseWatch, owner: str) -> ScriptCall:
    queue, seen = wish.queue, wish.seen
    return load("acquire").call(
        shard_keys(wish.shard),
        owner=owner,
        seen_owner=id_bytes(seen.owner),
        seen_epoch=seen.epoch,
        seen_counter=seen.counter,
        seen_server=seen.server,
        known_epoch=wish.known_epoch,
        shards=queue.layout.route,
        merge=queue.merge.value,
        policy=queue.policy,
        max_crashes=queue.max_crashes,
        poison_error=queue.poison_error,
    )


def _states(server: bytes, holders: Sequence[bytes], *leases: bytes | int) -> Iterator[LeaseState]:
    run_id = parse_id(server)
    held_by = [
        (parse_id(owner), parse_id(given_on), leaving == b"1")
        for owner, given_on, leaving in zip(holders[::3], holders[1::3], holders[2::3], strict=True)
    ]
    for place, *texts in zip(*(leases[n::4] for n in range(4)), strict=True):
        owner, given_on, leaving = held_by[int(place)]
        epoch, counter, turn = map(bytes, texts)
        numbers = parse_whole(epoch), parse_whole(counter)
        yield LeaseState(owner, *numbers, run_id, given_on, leaving, _turn(turn, epoch))


def _turn(text: bytes, epoch: bytes) -> int:
    """Return the owner's turn; 0 for one of another epoch, which is a former owner's."""
    of, _, turn = text.partition(b" ")
    return parse_whole(turn) if of == epoch else 0


def _renew_plain(client: Client, leases: Sequence[Lease], turn: int) -> dict[int, Renewed]:
    """Return the answers about leases that were renewed or whose master is unreachable, by position."""

    def renew(part: Sequence[int]) -> ScriptCall:
        return load("renew_many").call_many(
            [shard_keys(leases[n].shard)["lease"] for n in part],
            [leases[n].epoch for n in part],
            owner=leases[part[0]].owner,
            turn=turn,
        )

    parts, unreachable = client.each_part(range(len(leases)), RENEWED_TOGETHER, renew)
    answers: dict[int, Renewed] = dict.fromkeys(unreachable)
    for part, (server, *left) in parts:
        name = server.decode()
        answers.update((n, replace(leases[n], server=name)) for n in part)
        for position in left:
            del answers[part[position - 1]]
    return answers


def _still_empty(client: Client, shards: Sequence[ShardRef], numbers: Sequence[int]) -> dict[int, Due | None]:
    """Return by its number each of these shards that still has no waiting job, with a due time of None, and
    each whose master is unreachable.
    """
    parts, unreachable = client.each_part(
        numbers,
        LOOKED_INTO,
        lambda part: load("find_jobs").call_many([shard_keys(shards[n])["jobs"] for n in part]),
    )
    dues: dict[int, Due | None] = dict.fromkeys(unreachable)
    for part, (now, *positions) in parts:
        dues.update(dict.fromkeys(part, Due(None, parse_seconds(now))))
        for position in positions:
            del dues[part[position - 1]]
    return dues
