"""Reads for people: shards with their owners, the facts of ``why``. No job depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.diagnosis import Dead, DiagnosisFacts, DueBefore, Missing, Owner, Waiting
from celery_lowkiq.rules.errors import ShardDamaged
from celery_lowkiq.rules.health import LATE, Hint, shard_hints
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.policies import ASKED, seconds_to_token, token_at
from celery_lowkiq.rules.views import (
    NodeReport,
    ShardReport,
    ShardState,
    Stats,
    node_name,
    seconds_to_wait,
    shard_rates,
)
from celery_lowkiq.store.claims import open_claims
from celery_lowkiq.store.client import Client, raise_refused
from celery_lowkiq.store.counts import shard_states
from celery_lowkiq.store.exchange import Command
from celery_lowkiq.store.keys import WAITING_KEYS, KeyAliases, history_key, shard_keys, tokens_key
from celery_lowkiq.store.node_reports import (
    SHARDS_FIELDS,
    Timed,
    each_timed,
    parse_counters,
    parse_report,
    read_nodes,
    read_reports,
    report_command,
)
from celery_lowkiq.store.records import (
    id_bytes,
    parse_id,
    parse_moment,
    parse_pause,
    parse_retry_count,
    parse_seconds,
    parse_time,
    parse_whole,
    reads_replies,
    seconds_of_time,
)
from celery_lowkiq.store.script import load

#: Place of the number of payloads in a reply of ``peek.lua``.
PAYLOAD_COUNT = 3
#: Facts of an id on the masters of other keys.
OTHERS = (Missing.REPORTS, Missing.TOKENS)
#: Decodes a stored error.
ReadError = Callable[["bytes | None"], "str | None"]


@reads_replies
def shards(client: Client, queue: QueueSpec) -> tuple[ShardReport, ...]:
    """Return each shard with its counts, its owner and its running batch, in three round trips.

    Facts of an unreachable master are unknown. Raises StoreUnavailable when that is all.
    """
    shards = queue.shard_refs()
    reads = {(shard, n): one for shard in shards for n, one in enumerate(_reads_of(shard))}
    counters = ("HMGET", history_key(queue.name), *SHARDS_FIELDS)
    found, errors = client.each_command({"counters": counters, "time": ("TIME",), **reads})
    lost = {shard for shard, _ in reads.keys() & errors.keys()}
    known = {shard: [found[shard, n] for n in range(3)] for shard in shards if shard not in lost}
    states = shard_states(client, [queue])
    raise_refused([state.damage for state in states if state.damage])
    reports = _reports_of(client, {parse_id(lease[0]) for lease, *_ in known.values() if lease[0]})
    per_minute: Sequence[float | None] = [None] * len(shards)
    if "counters" in found:
        processed = [state.stats.processed for state in states]
        per_minute = shard_rates(parse_counters(found["counters"]), processed, seconds_of_time(found["time"]))
    return tuple(
        _shard_report(reports, state, rate, *known[state.shard])
        if state.unreachable is None and state.shard in known
        else ShardReport(
            state.shard.index, Stats(missing=1), unreachable=client.servers.master_of(state.shard)
        )
        for state, rate in zip(states, per_minute, strict=True)
    )


def _reports_of(client: Client, owners: Iterable[str]) -> dict[str, NodeReport] | None:
    """Return reports by owner; None when their master is unreachable and others respond."""
    found = client.unless_unreachable(lambda: read_reports(client, sorted(owners)))
    return None if found is None else {report.owner: report for report in found}


@reads_replies
def is_limited(client: Client, queue: QueueSpec) -> bool:
    """Return whether workers have just polled for tokens of the queue's rate limit."""
    time, tokens = client.commands([("TIME",), ("HMGET", tokens_key(queue.name), "left", "rate")])
    left, rate = tokens
    return _token_wait(left, rate, None, seconds_of_time(time))[0] is not None


@reads_replies
def hints(client: Client, queue: QueueSpec, shards: Sequence[ShardReport]) -> list[Hint]:
    """Return hints about the load of shards; none for a queue that is moving, or has a rate limit."""
    if queue.former_shards is not None or is_limited(client, queue):
        return []
    return shard_hints(queue.name, queue.shards, shards, read_nodes(client))


@reads_replies
def facts(
    client: Client,
    queue: QueueSpec,
    job_id: str,
    *,
    rate: float | None,
    max_retries: int | None,
    read: ReadError,
    merges: bool = True,
) -> DiagnosisFacts:
    """Return the facts for the diagnosis of an id, in two round trips, or four without an owner.

    ``rate``: the queue's rate limit (runs per second), unless a node has just used another one; ``read``:
    decodes a stored error; ``merges``: one run gets all payloads of a job. In a migration, they are
    those of the shard where the id has most to do. What another master would tell that is unreachable is
    ``missing``.
    """
    shard, reply, counted = _read_id(client, queue, job_id)
    now, owner, since, shard_paused, queue_paused, pause, claimed, suspect, *rest = reply
    *waiting, died_at, last_error, full_at, moving = rest
    id_rate = queue.policies.rate_per_id
    held_since, id_paused = parse_pause(pause)
    commands = [report_command(parse_id(owner)), ("HMGET", tokens_key(queue.name), "left", "rate")]
    found, _ = each_timed(client, dict(zip(OTHERS, commands, strict=True)))
    fields, tokens = (found.get(what) for what in OTHERS)
    left, stored_rate = tokens.reply if tokens is not None else (None, None)
    rate, token_wait = _token_wait(left, stored_rate, rate, tokens.now if tokens is not None else 0.0)
    nodes = None if owner else client.unless_unreachable(lambda: read_nodes(client))
    node = parse_report(parse_id(owner), fields.reply, fields.now) if owner and fields else None
    at = _waiting(waiting, counted[PAYLOAD_COUNT], read)
    return DiagnosisFacts(
        id=job_id,
        shard=shard,
        now=float(now),
        claimed=bool(claimed),
        suspect=bool(suspect),
        moving=bool(moving),
        waiting=at,
        dead=Dead(float(died_at), read(last_error or None)) if died_at else None,
        owner=_owner(parse_id(owner), parse_moment(since), shard, node, fields) if owner else None,
        due_before=_due_before(client, shard, node, at, float(now)),
        unowned_since=None if owner else parse_moment(since),
        free_in=None if owner else seconds_to_wait(nodes or (), shard),
        queue_paused=parse_moment(queue_paused),
        shard_paused=parse_moment(shard_paused),
        id_paused=id_paused,
        held_since=held_since,
        rate=rate,
        token_wait=token_wait,
        max_retries=max_retries,
        merges=merges,
        id_rate=id_rate,
        id_token_at=token_at(float(full_at) / 1_000_000, id_rate) if full_at and id_rate else 0.0,
        missing=tuple(what for what in OTHERS if what not in found),
    )


def _due_before(
    client: Client, shard: ShardRef, node: NodeReport | None, waiting: Waiting | None, now: float
) -> tuple[DueBefore, ...]:
    """Return the other shards of the lane that are due before a job that is late, in one round trip."""
    lane = node.lane_of(shard) if node is not None else None
    if lane is None or waiting is None or now - waiting.perform_in < LATE:
        return ()
    others = [one for one in lane.shards if one != shard]
    calls = {one: load("next_due").call(shard_keys(one), open=open_claims(None)) for one in others}
    dues, _ = client.each(calls, ShardDamaged)
    found = [
        DueBefore(one, parse_seconds(at) - due)
        for one, (at, next_due) in dues.items()
        if (due := parse_time(next_due)) is not None and due < waiting.perform_in
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _read_id(client: Client, queue: QueueSpec, job_id: str) -> tuple[ShardRef, Sequence[Any], Sequence[Any]]:
    """Return the shard where an id has most to do, and its replies of ``why.lua`` and ``peek.lua``."""
    shards = queue.shards_of(job_id)
    name = id_bytes(job_id)
    whys = [load("why").call(shard_keys(one), id=name) for one in shards]
    peek = load("peek")
    counts = [
        peek.call(KeyAliases(shard_keys(one), WAITING_KEYS), [name], limit=1, max_bytes=1, cut=1)
        for one in shards
    ]
    replies = client.all([*whys, *counts])
    found = zip(shards, replies[: len(shards)], replies[len(shards) :], strict=True)
    shard, reply, (counted,) = max(found, key=lambda each: _urgency(each[1]))
    return shard, reply, counted


def _shard_report(
    nodes: Mapping[str, NodeReport] | None,
    state: ShardState,
    jobs_per_minute: float | None,
    lease: Sequence[bytes | None],
    pauses: Sequence[bytes | None],
    moving: int,
) -> ShardReport:
    owner, epoch, since = lease
    node = nodes.get(parse_id(owner)) if owner and nodes else None
    lane = node.lane_of(state.shard) if node is not None else None
    return ShardReport(
        index=state.shard.index,
        stats=state.stats,
        owner=node_name(parse_id(owner)) if owner else None,
        epoch=parse_whole(epoch or b""),
        since=parse_moment(since),
        alive=None if nodes is None else node is not None and node.alive,
        silent=node.silent if node is not None else None,
        running=node.running(state.shard) if node is not None else None,
        paused_since=min((at for text in pauses if (at := parse_moment(text)) is not None), default=None),
        moving=moving,
        jobs_per_minute=jobs_per_minute,
        lane=lane.name if lane is not None else None,
    )


def _reads_of(shard: ShardRef) -> tuple[Command, ...]:
    """Return the reads of a shard's lease, pauses, and number of jobs that move."""
    keys = shard_keys(shard)
    return (
        ("HMGET", keys["lease"], "owner", "epoch", "since"),
        ("HMGET", keys["meta"], "paused", "queue_paused"),
        ("ZCARD", keys["moving"]),
    )


def _urgency(reply: Sequence[Any]) -> tuple[bool, bool, bool]:
    """True if an id is claimed, waits, or is dead in the shard of a reply."""
    return bool(reply[6]), bool(reply[8]), bool(reply[12])


def _waiting(reply: Sequence[Any], payloads: int, read: ReadError) -> Waiting | None:
    perform_in, tried, ahead, error = reply
    if not perform_in:
        return None
    retry_count, isolation = parse_retry_count(tried)
    return Waiting(float(perform_in), retry_count, read(error or None), ahead, isolation.largest, payloads)


def _owner(
    name: str, since: float | None, shard: ShardRef, node: NodeReport | None, fields: Timed | None
) -> Owner:
    """``node``: its report; ``fields``: None when the master with the reports is unreachable."""
    if fields is None:
        return Owner(node_name(name), since, alive=None)
    if node is None:
        return Owner(node_name(name), since)
    lane = node.lane_of(shard)
    return Owner(
        name=node.name,
        since=since,
        silent=node.silent,
        alive=node.alive,
        leaving=node.stopping or node.quiet,
        lane=lane.name if lane is not None else None,
        running=lane.running if lane is not None else node.running(shard),
    )


def _token_wait(
    tokens: bytes | None, stored_rate: bytes | None, declared: float | None, now: float
) -> tuple[float | None, float]:
    """Return the effective rate limit of a queue, if any, and the seconds until its next token."""
    # `celery control rate_limit` changes only the workers' rate, so theirs has precedence.
    number, _, at = (tokens or b"").partition(b" ")
    available, micros = parse_moment(number), parse_moment(at)
    if available is None or micros is None:
        return declared, 0.0
    ago = now - micros / 1_000_000
    rate = (parse_moment(stored_rate) if ago < ASKED else None) or declared
    return rate, seconds_to_token(available, ago, rate) if rate and rate > 0 else 0.0
