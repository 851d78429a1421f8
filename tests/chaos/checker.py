"""Judges a run: a pure function of its history."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from tests.chaos.handovers import handover_gate, undisturbed_handovers
from tests.chaos.history import Acquire, Death, Execution, History, Push, Settle
from tests.chaos.ownership import Leases
from tests.chaos.proof import left_out, made, proof_gates
from tests.chaos.report import EXAMPLES, Gate, Report
from tests.chaos.silence import healthy_silences, silence_gate

#: Seconds that the queue may take to get empty after the last fault.
DRAIN_LIMIT = 10.0
#: Seconds beyond the lease's own times that a takeover may take.
GRACE = 1.0


def check(history: History) -> Report:
    """Every gate of a run."""
    leases = Leases(history)
    lost, forgiven = _lost(history)
    true, frozen = _overlaps(history, leases)
    latencies = list(_takeovers(history, leases))
    measured = {"takeovers": len(latencies)}
    gates = [
        _none("lost payloads", lost),
        _none("settled twice", list(_settled_twice(history))),
        _none("overlapping executions", [*true, *frozen] if history.strict else true),
        _none("accepted stale writes", list(leases.stale_settles())),
        _none("epochs that do not grow", list(leases.standing_epochs())),
        _none("order inversions", [*_descending(history), *_overtaken(history)]),
        _none("leftover keys", list(history.drain.leftover)),
        _none("unexpected ends of workers", _unexpected(history)),
        _drain(history),
        Gate("takeover s", max(latencies, default=None), _takeover_limit(history)),
        _none("idle run", [] if history.pushes and history.executions else ["nothing was worked on"]),
    ]
    if history.cluster:
        silences = list(healthy_silences(history, leases))
        measured["healthy silences"] = len(silences)
        gates.append(silence_gate(silences))
    if any(execution.died is not None for execution in history.executions):
        gates.append(_none("handed out over a gap", list(_over_gaps(history))))
    comes_and_goes = {trouble.kind for trouble in history.troubles} == {"rebalance"}
    if comes_and_goes or history.cluster:
        handovers = list(undisturbed_handovers(history, leases))
        measured["hand-overs"] = len(handovers)
        gates.append(handover_gate(handovers))
    if comes_and_goes:
        gates.append(_none("duplicates", _duplicates(history)))
    gates += proof_gates(history, measured)
    return Report(tuple(gates), _figures(history, forgiven, frozen, measured))


def _drain(history: History) -> Gate:
    # On a cluster, shards may wait for a lease that another server gave.
    limit = DRAIN_LIMIT + (1.25 * history.lease if history.cluster else 0.0)
    return Gate("drain s", math.inf if history.drain.seconds is None else history.drain.seconds, limit)


def _none(name: str, found: list[str]) -> Gate:
    return Gate(name, len(found), 0, tuple(found[:EXAMPLES]))


def _figures(
    history: History, forgiven: list[Push], frozen: list[str], measured: Mapping[str, int]
) -> dict[str, Any]:
    faults: dict[str, int] = defaultdict(int)
    for trouble in history.troubles:
        faults[trouble.kind] += 1
    return {
        "payloads": len(history.pushes),
        "executions": len(history.executions),
        "faults": sum(faults.values()),
        "faults by kind": dict(sorted(faults.items())),
        "faults that happened": made(history),
        "faults left out": left_out(history),
        "frozen overlaps": len(frozen),
        "lost within rollbacks": len(forgiven),
        **_not_confirmed(history),
        "duplicates": len(_duplicates(history)),
        "payloads that died": sum(execution.died is not None for execution in history.executions),
        "deaths at a deadline": sum(death.cause == "deadline" for death in history.deaths),
        **{f"{name} measured": count for name, count in measured.items()},
    }


# -- payloads


def _lost(history: History) -> tuple[list[str], list[Push]]:
    """Accepted payloads that no run finished; apart from them those that a rollback made Redis forget."""
    done = _done(history)
    lost: list[str] = []
    forgiven: list[Push] = []
    for push in history.pushes:
        # A payload that is given again needs a run that ends after that.
        if done.get((push.id, push.payload), -math.inf) >= push.called_at:
            continue
        if any(rollback.touches(push.called_at, push.at) for rollback in history.rollbacks):
            forgiven.append(push)
        else:
            lost.append(f"id {push.id} payload {push.payload} accepted at {push.at:.3f}")
    return lost, forgiven


def _done(history: History) -> dict[tuple[str, int], float]:
    """When each payload was last finished."""
    done: dict[tuple[str, int], float] = {}
    for execution in history.executions:
        if execution.finished and execution.ended_at is not None:
            for one in _payloads(execution):
                done[one] = max(done.get(one, -math.inf), execution.ended_at)
    return done


def _payloads(execution: Execution) -> Iterator[tuple[str, int]]:
    for job_id, payloads in execution.payloads.items():
        for payload in payloads:
            yield job_id, payload


def _not_confirmed(history: History) -> dict[str, Any]:
    """Payloads of calls that ended with an error, and were not made again; those that nobody ran by name."""
    if not history.unconfirmed:
        return {}
    done, accepted = _done(history), {(push.id, push.payload) for push in history.pushes}
    given_up = {(push.id, push.payload) for push in history.unconfirmed} - accepted
    lost = sorted(given_up - done.keys(), key=lambda one: one[1])
    names = [f"id {job_id} payload {payload}" for job_id, payload in lost]
    return {"not confirmed": len(given_up), "not confirmed and lost": names}


def _settled_twice(history: History) -> Iterator[str]:
    """Payloads that were settled as done, and run and settled again, though nobody pushed them meanwhile.

    Not where a rollback or a failover made Redis forget the first claim or its settle.
    """
    pushed: dict[tuple[str, int], float] = {}
    for push in (*history.pushes, *history.unconfirmed):
        pushed[push.id, push.payload] = max(pushed.get((push.id, push.payload), -math.inf), push.at)
    settled: dict[tuple[str, int], tuple[Execution, Settle]] = {}
    for execution, settle in sorted(_settles(history), key=lambda one: one[1].at):
        for one in _payloads(execution):
            if settle.done is not None and one[0] not in settle.done:
                # A run that ended while its node lost the lease goes back to the queue.
                continue
            known = settled.get(one)
            settled[one] = execution, settle
            if (
                known is None
                or execution.claimed_at < known[1].at
                or pushed.get(one, 0.0) > known[0].claimed_at
            ):
                continue
            # Of the shard that it ran in first: a migration may have moved it since.
            lost = (loss for loss in history.losses if loss.concerns(known[0].shard))
            if not any(loss.touches(known[0].claimed_at, known[1].at) for loss in lost):
                yield f"id {one[0]} payload {one[1]}: at {known[1].at:.3f} and at {settle.at:.3f}"


def _settles(history: History) -> Iterator[tuple[Execution, Settle]]:
    """Finished runs with their settles: the first ones of the same lease, before its next run."""
    by_lease: dict[tuple[int, int, int], list[Execution]] = defaultdict(list)
    for execution in sorted(history.executions, key=lambda one: one.began_at):
        by_lease[execution.pid, execution.shard, execution.epoch].append(execution)
    settles: dict[tuple[int, int, int], list[Settle]] = defaultdict(list)
    for settle in sorted(history.settles, key=lambda one: one.called_at):
        settles[settle.pid, settle.shard, settle.epoch].append(settle)
    for lease, executions in by_lease.items():
        ends = [execution.began_at for execution in executions[1:]]
        for execution, until in zip(executions, [*ends, math.inf], strict=True):
            first = bisect_left(settles[lease], execution.ended_at or math.inf, key=lambda one: one.called_at)
            found = settles[lease][first : first + 1]
            if execution.finished and found and found[0].called_at < until:
                yield execution, found[0]


def _duplicates(history: History) -> list[str]:
    """Payloads that were finished more than once."""
    times: dict[tuple[str, int], int] = defaultdict(int)
    for execution in history.executions:
        for job_id, payloads in execution.payloads.items():
            for payload in payloads:
                times[job_id, payload] += execution.finished
    return [f"id {job_id} payload {payload}: {n} times" for (job_id, payload), n in times.items() if n > 1]


# -- order


def _descending(history: History) -> Iterator[str]:
    for execution in history.executions:
        for job_id, payloads in execution.payloads.items():
            if any(later <= earlier for earlier, later in pairwise(payloads)):
                yield f"id {job_id}: a batch at {execution.began_at:.3f} has {list(payloads)}"


def _over_gaps(history: History) -> Iterator[str]:
    """Runs of payloads above one that has died before their claim, and that no run has finished since."""
    by_id: dict[str, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        for job_id in execution.payloads:
            by_id[job_id].append(execution)
    for job_id, executions in by_id.items():
        for death in executions:
            dead = death.died
            if dead is None or death.ended_at is None:
                continue
            runs = [one for one in executions if one.finished and dead in one.payloads[job_id]]
            done_at = min((one.ended_at for one in runs if one.ended_at is not None), default=math.inf)
            for one in executions:
                payloads = one.payloads[job_id]
                over = max(payloads) > dead and dead not in payloads
                if over and death.ended_at < one.claimed_at < done_at:
                    yield f"id {job_id}: {list(payloads)} at {one.began_at:.3f}, while {dead} was dead"


def _overtaken(history: History) -> Iterator[str]:
    """Payloads that were accepted before a later one was claimed, and that first ran after it.

    It is the call of the claim that counts: what was accepted between that and the run may come next.
    """
    first = _first_claims(history)
    by_id: dict[str, list[Push]] = defaultdict(list)
    for push in history.pushes:
        if (push.id, push.payload) in first:
            by_id[push.id].append(push)
    for job_id, pushes in by_id.items():
        later: list[float] = []
        for push in sorted(pushes, key=lambda one: -one.payload):
            claimed_at = first[job_id, push.payload]
            since = bisect_right(later, push.at)
            if since < len(later) and later[since] < claimed_at:
                yield (
                    f"id {job_id}: payload {push.payload}, accepted at {push.at:.3f}, first claimed at "
                    f"{claimed_at:.3f}, a later one at {later[since]:.3f}"
                )
            insort(later, claimed_at)


def _first_claims(history: History) -> dict[tuple[str, int], float]:
    first: dict[tuple[str, int], float] = {}
    for execution in history.executions:
        for job_id, payloads in execution.payloads.items():
            for payload in payloads:
                known = first.get((job_id, payload), math.inf)
                first[job_id, payload] = min(known, execution.claimed_at)
    return first


# -- exclusion


def _overlaps(history: History, leases: Leases) -> tuple[list[str], list[str]]:
    """Pairs of runs of one id at one time; those in which the former owner's lease had run out are apart."""
    by_id: dict[str, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        for job_id in execution.payloads:
            by_id[job_id].append(execution)
    true: list[str] = []
    frozen: list[str] = []
    seen = set()
    for job_id, executions in by_id.items():
        for former, later in _meetings(executions):
            pair = (id(former), id(later))
            if pair not in seen:
                seen.add(pair)
                text = f"id {job_id}: pid {former.pid} epoch {former.epoch} and pid {later.pid} epoch " + (
                    f"{later.epoch} from {later.began_at:.3f}"
                )
                (frozen if leases.ran_out(former, later) else true).append(text)
    return true, frozen


def _meetings(executions: list[Execution]) -> Iterator[tuple[Execution, Execution]]:
    running: list[Execution] = []
    for execution in sorted(executions, key=lambda one: one.began_at):
        running = [one for one in running if one.ended_at is None or one.ended_at > execution.began_at]
        for other in running:
            yield other, execution
        running.append(execution)


# -- takeover


def _takeover_limit(history: History) -> float:
    return 1.05 * history.lease + history.lease / 5 + GRACE


def _takeovers(history: History, leases: Leases) -> Iterator[float]:
    """Seconds from each death by kill until the last of its shards was granted again.

    A lease is free when a node has seen it unchanged for 1.05 lease times, so they count from when a node
    watches that lives on: from its start, if it began after the death. A node that began earlier has to take
    the shards, also while one is new that has its share of them. Only where nothing else was wrong meanwhile:
    a takeover needs Redis, and a node that is not frozen.
    """
    limit = _takeover_limit(history)
    died = {death.pid: death.at for death in history.deaths}
    for death in history.deaths:
        if death.cause != "kill":
            continue
        survivors = [w.at for w in history.watches if died.get(w.pid, math.inf) > max(w.at, death.at) + limit]
        since = max(death.at, min(survivors, default=death.at))
        if _disturbed(history, death, since + limit):
            continue
        for shard, epoch in leases.held_at(death.pid, death.at).items():
            taken: Acquire | None = leases.next_after(shard, epoch)
            yield math.inf if taken is None else max(0.0, taken.at - since)


def _disturbed(history: History, death: Death, until: float) -> bool:
    return any(
        trouble.touches(death.at - history.lease, until)
        for trouble in history.troubles
        if not (trouble.kind.startswith("kill") and trouble.began_at <= death.at <= trouble.ended_at)
    )


def _unexpected(history: History) -> list[str]:
    return [f"pid {d.pid} at {d.at:.3f}" for d in history.deaths if d.cause == "unexpected"]
