"""Claims and settles: how they are asked for, and what the answers mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from celery_lowkiq.rules.claims import Claim, ClaimRequest, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, StoreError
from celery_lowkiq.rules.loggers import store_logger as logger
from celery_lowkiq.rules.models import Disposition, Lease, Settlement
from celery_lowkiq.rules.priorities import turn
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import (
    id_bytes,
    number_text,
    pairs,
    parse_id,
    parse_processing,
    parse_time,
    tried_text,
)
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

from .call_records import end_calls, jobs_with_calls
from .tracker_updates import update_commands

A = TypeVar("A")

#: What a claim takes of one id, and of all ids together before it leaves the next one.
CLAIM_PAYLOADS = 1000
CLAIM_BYTES = 1024 * 1024
#: Kinds of claims, as ``claim.lua`` calls them.
SUSPECT, ONLY_SUSPECTS = 1, 2
#: Added to the kind when keys of long or failed jobs do not agree.
FRAYED = 4


def open_claims(in_hand: OpenClaims | None) -> str:
    """As ``lib/unacknowledged.lua`` reads it."""
    return "any" if in_hand is None else " ".join(map(str, in_hand.open))


def owned(name: str, lease: Lease, rest: Sequence[Value] = (), **args: Value) -> ScriptCall:
    """A script that only an owner may run."""
    return load(name).call(shard_keys(lease.shard), rest, owner=lease.owner, epoch=lease.epoch, **args)


def claim_call(wish: ClaimRequest) -> ScriptCall:
    """The command of a claim."""
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


def is_frayed(reply: Any) -> bool:
    """Whether a claim has found keys of failed jobs that do not agree."""
    return not isinstance(reply, StoreError) and reply[3] >= FRAYED


def claimed(wish: ClaimRequest, reply: Any) -> Claim | StoreError:
    """Its answer: jobs in the order of their turns, by their own times."""
    if isinstance(reply, StoreError):
        return reply
    now, next_due, number, kind, *batch = reply
    kind %= FRAYED
    unwanted = batch.pop() if len(batch) > 1 and isinstance(batch[-2], list) else []
    calls = batch.pop() if len(batch) % 2 else []
    jobs = jobs_with_calls([parse_processing(job_id, record) for job_id, record in pairs(batch)], calls)
    if unwanted:
        counts = dict(pairs(unwanted))
        jobs = [job._replace(unwanted=counts.get(id_bytes(job.id), 0)) for job in jobs]
    if any(job.perform_in > float(now) for job in jobs):
        jobs = [job._replace(early=job.perform_in > float(now)) for job in jobs]
    jobs.sort(key=lambda job: (job.perform_in, id_bytes(job.id)))
    if any(job.priority for job in jobs):
        max_wait = wish.queue.policies.priority_max_wait
        jobs.sort(key=lambda job: turn(job.priority, job.perform_in, float(now), max_wait))
    return Claim(
        number=number if jobs else 0,
        jobs=tuple(jobs),
        now=float(now),
        next_due=parse_time(next_due),
        suspect=kind == SUSPECT,
        suspect_due=kind == ONLY_SUSPECTS,
    )


def settle_calls(settle: SettleRequest) -> list[ScriptCall]:
    """The commands of a settle.

    Trackers are told first: what is told twice counts once. Then the records of ended calls go: a job that
    comes back without them runs once more, but a record that outlived its job would give its call the
    outcome of another.
    """
    done, others = _split(settle)
    rest: list[Value] = [id_bytes(verdict.id) for verdict in done]
    rest += (value for verdict in others for value in _verdict_values(verdict))
    ended = [run for verdict in settle.verdicts for run in verdict.ended]
    calls = _tells(settle)
    if ended:
        calls.append(end_calls(settle.lease, ended))
    claim = done[0].claim if done else 0
    words = {"merge": settle.queue.merge.value, "policy": settle.queue.policy}
    return [*calls, owned("settle", settle.lease, rest, claim=claim, done=len(done), **words)]


def _tells(settle: SettleRequest) -> list[ScriptCall]:
    news = [each for verdict in settle.verdicts for each in verdict.news]
    return [call for _, call in update_commands(news)]


def _split(settle: SettleRequest) -> tuple[list[Settlement], list[Settlement]]:
    """Those of one claim that are just done, as nearly all are, and the others. Where it is remembered which
    scores were done, nothing is just done.
    """
    if settle.queue.policies.drop_stale is not None:
        return [], list(settle.verdicts)
    done: list[Settlement] = []
    others: list[Settlement] = []
    for verdict in settle.verdicts:
        just_done = verdict.fate is Disposition.DONE and not verdict.bad
        (done if just_done and (not done or done[0].claim == verdict.claim) else others).append(verdict)
    return done, others


def settled(settle: SettleRequest, replies: Sequence[Any]) -> SettleReply | StoreError:
    """Their answer; the first error among them. Trouble with a tracker is not the shard's."""
    told = len(_tells(settle))
    for reply in replies[:told]:
        if isinstance(reply, StoreError):
            logger.warning(
                "a tracker was not told how calls of shard %s ended: %s", settle.lease.shard, reply
            )
    for reply in replies[told:]:
        if isinstance(reply, StoreError):
            return reply
    now, next_due, all_done, *ids = replies[-1]
    accepted = {parse_id(job_id) for job_id in ids}
    if all_done:
        accepted.update(verdict.id for verdict in _split(settle)[0])
    return SettleReply(frozenset(accepted), float(now), parse_time(next_due))


def sound(answer: A | LowkiqError | None) -> A:
    """The answer, unless it is an error: then that is raised."""
    if isinstance(answer, LowkiqError):
        raise answer
    assert answer is not None
    return answer


def _verdict_values(verdict: Settlement) -> Iterator[Value]:
    tried = tried_text(verdict.retry_count, verdict.isolation)
    yield from (id_bytes(verdict.id), verdict.claim, verdict.fate.value, tried)
    when = f"@{number_text(verdict.perform_in)}" if verdict.perform_in else number_text(verdict.delay)
    yield from (when, verdict.error, verdict.try_text, len(verdict.bad))
    for bad in verdict.bad:
        yield from (-1 - bad.position, bad.gone.value) if bad.error is None else (bad.position, bad.error)
