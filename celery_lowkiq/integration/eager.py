"""Eager mode: runs calls in this process, without store and worker, in the batches of a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery.exceptions import Retry
from celery.result import EagerResult
from celery.states import FAILURE, SUCCESS

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.decisions import (
    Again,
    BusinessFailure,
    ById,
    JobsFailed,
    call_user_code,
    unwrap,
)
from celery_lowkiq.integration.decode import RunInfo, RunJob
from celery_lowkiq.rules.models import Call, Merge, QueueSpec
from celery_lowkiq.rules.policies import surplus


def batch_of(calls: Iterable[Call], task: Any) -> dict[str, list[Any]]:
    """Payloads by id: equal ones merged (rule 2), smallest score first, decoded from their bytes.

    The default score is the call's position. The policy ``keep`` applies.
    """
    codec, spec = context_of(task._get_app()).codec, task.queue_spec
    scores: dict[str, dict[bytes, float]] = {}
    for place, call in enumerate(calls):
        score = float(place) if call.score is None else call.score
        by_data = scores.setdefault(call.id, {})
        known = by_data.get(call.data)
        if known is None or ((score > known) == (spec.merge is Merge.MAX) and score != known):
            by_data.pop(call.data, None)
            by_data[call.data] = score
    batch = {}
    for job_id, by_data in scores.items():
        kept = sorted(by_data, key=lambda data: by_data[data])[surplus(len(by_data), spec.policies.keep) :]
        batch[job_id] = [codec.load_verified(data) for data in kept]
    return batch


def info(spec: QueueSpec, payloads_by_id: Mapping[str, list[Any]]) -> RunInfo:
    """``self.request.lowkiq`` of an eager run. Without a lease, the fence is 0; scores are positions."""
    jobs = tuple(
        RunJob(job_id, tuple(payloads), tuple(map(float, range(len(payloads)))), -1, 0.0, None)
        for job_id, payloads in payloads_by_id.items()
    )
    return RunInfo(spec.name, spec.shard_of(next(iter(payloads_by_id))).index, 0, jobs, threading.Event())


def eager_outcome(run: Callable[[], Any], payloads_by_id: Mapping[str, list[Any]]) -> Any:
    """The value or error that Celery is to record of a run; of a batch of one id, that id's own."""
    (job_id, *others) = payloads_by_id
    try:
        result = call_user_code(run)
    except (Again, BusinessFailure, JobsFailed, Retry) as error:
        outcome = unwrap(error)
        if isinstance(outcome, JobsFailed) and not others and outcome.errors.keys() == {job_id}:
            outcome = unwrap(outcome.errors[job_id])
        if isinstance(outcome, Again):
            # Without a queue the rest does not run again, as with `self.retry`.
            outcome = Retry(str(outcome), when=outcome.after)  # type: ignore[arg-type]
        if outcome is error:
            raise
        raise outcome from error
    return result.get(job_id) if isinstance(result, ById) and not others else result


def run_bulk(task: Any, calls: Sequence[Call]) -> list[Any]:
    """Run a bulk call, ``batch_size`` ids at a time. ``task_eager_propagates`` decides about errors.

    Returns the EagerResult of each call.
    """
    batch = batch_of(calls, task)
    ids = list(batch)
    size = task.queue_spec.batch_size
    results = {}
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        result = task.apply_batch({job_id: batch[job_id] for job_id in part})
        results.update({job_id: _own(result, job_id) for job_id in part})
    return [results[call.id] for call in calls]


def _own(result: Any, job_id: str) -> Any:
    value: Any = result.result
    state = result.state
    if isinstance(value, ById):
        value = value.get(job_id)
    elif isinstance(value, JobsFailed) and value.errors:
        failed = job_id in value.errors
        value, state = (value.errors if failed else value.results).get(job_id), FAILURE if failed else SUCCESS
    return EagerResult(result.id, value, state, result.traceback)
