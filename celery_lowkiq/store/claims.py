"""Claims: claim jobs, settle them, and read when the next are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from celery_lowkiq.rules.basics import store_logger as logger
from celery_lowkiq.rules.claims import SENT_AGAIN, Claim, ClaimRequest, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, StoreError
from celery_lowkiq.rules.models import Disposition, Failure, Job, Lease, Settlement, ShardRef
from celery_lowkiq.rules.policies import turn
from celery_lowkiq.store.call_records import end_calls, jobs_with_calls, update_commands
from celery_lowkiq.store.client import Client, raise_refused
from celery_lowkiq.store.keys import announcement, failure_ranks_key, failures_key, shard_keys
from celery_lowkiq.store.records import (
    id_bytes,
    number_text,
    pairs,
    parse_id,
    parse_processing,
    parse_seconds,
    parse_time,
    retry_count_text,
)
from celery_lowkiq.store.script import ScriptCall, Value, load

# Failures of a settle, counted in the groups of their fingerprints.

#: Maximum number of groups of a queue, and of one settle.
MAX_GROUPS = 200


def record_call(queue: str, failures: Sequence[Failure]) -> ScriptCall:
    """Return the script call that counts failures in their groups."""
    counts = Counter(failure.fingerprint for failure in failures)
    about = {failure.fingerprint: failure.description for failure in failures}
    rest: list[Value] = []
    for fingerprint, count in counts.most_common(MAX_GROUPS):
        rest += fingerprint, count, about[fingerprint]
    keys = {"failures": failures_key(queue), "failure_ranks": failure_ranks_key(queue)}
    return load("record_failures").call(keys, rest, most=MAX_GROUPS)


# Scans of a key, whose cursors only the server that gave them understands.


class Position(NamedTuple):
    """How far a scan has come; 0 is the beginning, and the end. ``server`` gave the cursor."""

    cursor: int = 0
    server: str = ""


BEGINNING = Position()


def scan_call(key: str, position: Position, limit: int, command: str = "ZSCAN") -> ScriptCall:
    """Return the call that reads about ``limit`` entries. When the key has moved to another server, which may
    be a replica of the former one or that one restarted, it reads from the beginning.
    """
    cursor, server = position
    return load("scan").call({"index": key}, command=command, cursor=cursor, limit=limit, server=server)


def scanned(reply: Sequence[Any]) -> tuple[Position, list[tuple[bytes, bytes]]]:
    """Read the reply of :func:`scan_call`: where to go on, and the entries with their scores or values."""
    server, cursor, entries = reply
    return Position(int(cursor), parse_id(server)), list(pairs(entries))


def scan(client: Client, key: str, step: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield (member, score) pairs of a sorted set, at most ``step`` at a time.

    The scan finds all members that are there throughout; those that it has read come again when the key moves
    to another server. Raises StoreError.
    """
    position = BEGINNING
    while True:
        position, found = scanned(client.call(scan_call(key, position, step)))
        yield from (found[start : start + step] for start in range(0, len(found), step))
        if not position.cursor:
            return


# Scripts of claims and settles, and the meaning of their replies.

A = TypeVar("A")

#: Limits of what a claim takes of one id; a batch that has reached one takes no further id.
CLAIM_PAYLOADS = 1000
CLAIM_BYTES = 1024 * 1024
#: Kinds of batches in replies of ``claim.lua``.
SUSPECT, ONLY_SUSPECTS = 1, 2
#: Added to the kind when keys of failed jobs differ.
ERRORS_DIFFER = 4


def open_claims(in_hand: OpenClaims | None) -> str:
    """Argument ``open`` of ``claim.lua`` and ``next_due.lua``."""
    return "any" if in_hand is None else " ".join(map(str, in_hand.open))


def owned(name: str, lease: Lease, rest: Sequence[Value] = (), **args: Value) -> ScriptCall:
    """Return a call of a script that checks owner and epoch."""
    return load(name).call(shard_keys(lease.shard), rest, owner=lease.owner, epoch=lease.epoch, **args)


def release_call(lease: Lease, unsettled: bool = False) -> ScriptCall:
    return owned("release", lease, server=lease.server, unsettled=int(unsettled), **announcement(lease.shard))


def claim_call(wish: ClaimRequest) -> ScriptCall:
    queue, in_hand = wish.queue, wish.in_hand
    return owned(
        "claim",
        wish.lease,
        merge=queue.merge.value,
        policy=queue.policy,
        request=wish.request,
        last=in_hand.last if in_hand else 0,
        open=open_claims(in_hand),
        limit=queue.batch_size * wish.batches,
        max_payloads=CLAIM_PAYLOADS,
        max_bytes=CLAIM_BYTES,
        suspects=int(wish.suspects),
        max_wait=number_text(queue.policies.priority_max_wait),
    )


def claimed(wish: ClaimRequest, reply: Any) -> Claim:
    """Read the reply of a claim: jobs in the order in which they run, by their own perform_in."""
    sent_at, next_due, number, kind, *batch = reply
    now = parse_seconds(sent_at)
    kind %= ERRORS_DIFFER
    unwanted = batch.pop() if len(batch) > 1 and isinstance(batch[-2], list) else []
    calls = batch.pop() if len(batch) % 2 else []
    jobs = _in_order(batch)
    if calls:
        jobs = jobs_with_calls(jobs, calls)
    if unwanted:
        counts = dict(pairs(unwanted))
        jobs = [job._replace(unwanted=int(counts.get(id_bytes(job.id), 0))) for job in jobs]
    if jobs and jobs[-1].perform_in > now:
        jobs = [job._replace(early=job.perform_in > now) for job in jobs]
    if any(map(attrgetter("priority"), jobs)):
        max_wait = wish.queue.policies.priority_max_wait
        jobs.sort(key=lambda job: turn(job.priority, job.perform_in, now, max_wait))
    return Claim(
        number=int(number) if jobs else 0,
        jobs=tuple(jobs),
        now=now,
        next_due=parse_time(next_due),
        suspect=kind == SUSPECT,
        suspect_due=kind == ONLY_SUSPECTS,
    )


def _in_order(batch: list[Any]) -> list[Job]:
    """Read ids and records, in the order of perform_in, then of ids."""
    ids = batch[::2]
    jobs = list(map(parse_processing, ids, batch[1::2]))
    # The ids differ: no two jobs are compared.
    return [job for _, _, job in sorted(zip([job.perform_in for job in jobs], ids, jobs, strict=True))]


@dataclass(frozen=True)
class SettleCalls:
    """Scripts that settle jobs, in the order in which they are sent, and the meaning of their replies.

    The last one may release the shard.
    """

    shard: ShardRef
    calls: list[ScriptCall]
    #: The first calls, of trackers: executed before the others.
    tracker_calls: int
    #: The first calls, of trackers and of groups of failures; they do not decide about the settle.
    side_calls: int
    #: Ids that the settle call settles together.
    done: frozenset[str]
    releases: bool

    def reply(self, replies: list[Any]) -> SettleReply:
        """Read the replies. Raises the first StoreError among them.

        Errors of side calls are logged, unless the settle is sent again. A release that fails leaves the
        shard to its owner.
        """
        released = False
        if self.releases:
            *replies, release_reply = replies
            released = release_reply == 1
        answer = replies[-1]
        for reply in replies[: self.side_calls]:
            if isinstance(reply, StoreError) and not isinstance(answer, SENT_AGAIN):
                logger.warning(
                    "trackers and failures: the end of some calls of shard %s is unknown: %s",
                    self.shard,
                    reply,
                )
        *_, (now, next_due, all_done, *ids) = raise_refused(replies[self.side_calls :])
        accepted = frozenset(map(parse_id, ids)) | (self.done if all_done else frozenset())
        return SettleReply(accepted, parse_seconds(now), parse_time(next_due), released)


def settle_calls(settle: SettleRequest) -> SettleCalls:
    """Return the scripts of a settle.

    Tracker updates come first: a repeated one has no effect. Records of ended calls are deleted before the
    settle: a restored job without them runs once more, but a record that outlived its job would give its
    call the outcome of another run.
    """
    done, others = _split(settle)
    ids = [settlement.id for settlement in done]
    rest: list[Value] = list(map(id_bytes, ids))
    for settlement in others:
        rest += _settlement_values(settlement)
    news = [each for settlement in settle.settlements for each in settlement.news]
    calls = [call for _, call in update_commands(news)] if news else []
    tracker_calls = len(calls)
    if failures := [each.failure for each in others if each.failure is not None]:
        calls.append(record_call(settle.lease.shard.queue, failures))
    side_calls = len(calls)
    if ended := [run for settlement in settle.settlements for run in settlement.ended]:
        calls.append(end_calls(settle.lease, ended))
    words = {"merge": settle.queue.merge.value, "policy": settle.queue.policy}
    claim = done[0].claim if done else 0
    calls.append(owned("settle", settle.lease, rest, claim=claim, done=len(done), **words))
    if settle.release:
        calls.append(release_call(settle.lease))
    return SettleCalls(settle.lease.shard, calls, tracker_calls, side_calls, frozenset(ids), settle.release)


def _split(settle: SettleRequest) -> tuple[list[Settlement], list[Settlement]]:
    """Separate the jobs of one claim that are done and have nothing else to store from the others."""
    if settle.queue.policies.drop_stale is not None:
        return [], list(settle.settlements)
    done: list[Settlement] = []
    others: list[Settlement] = []
    for settlement in settle.settlements:
        just_done = settlement.disposition is Disposition.DONE and not settlement.bad
        (done if just_done and (not done or done[0].claim == settlement.claim) else others).append(settlement)
    return done, others


def or_raise(answer: A | LowkiqError | None) -> A:
    """Return the answer. Raises it when it is an error."""
    if isinstance(answer, LowkiqError):
        raise answer
    assert answer is not None
    return answer


def _settlement_values(settlement: Settlement) -> Iterator[Value]:
    tried = retry_count_text(settlement.retry_count, settlement.isolation)
    yield from (id_bytes(settlement.id), settlement.claim, settlement.disposition.value, tried)
    when = (
        f"@{number_text(settlement.perform_in)}" if settlement.perform_in else number_text(settlement.delay)
    )
    if settlement.priority is not None:
        when = f"{when} {settlement.priority}"
    changes = 0 if settlement.change is None else 1
    yield from (when, settlement.error, settlement.try_text, len(settlement.bad) + changes)
    if (change := settlement.change) is not None:
        parts = (change.signature, change.key, change.head, change.record)
        lengths = " ".join(str(len(part)) for part in parts)
        yield from (-1 - change.position, b"=%b %b" % (lengths.encode(), b"".join((*parts, change.data))))
    for bad in settlement.bad:
        yield from (-1 - bad.position, bad.gone.value) if bad.error is None else (bad.position, bad.error)
