"""Running calls at once, without store and worker, in the shape that a worker would give them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery.exceptions import Retry
from celery.result import EagerResult
from celery.states import FAILURE, SUCCESS

from celery_lowkiq.integration.app.context import Home
from celery_lowkiq.integration.calls.validation import Entry
from celery_lowkiq.rules.models import Merge, QueueSpec, shard_of
from celery_lowkiq.rules.policies import surplus

from .aborts import failing
from .batch_results import ById, JobsFailed
from .decode import RunInfo, RunJob
from .outcomes import Again, BusinessFailure, meant


def batch_of(entries: Iterable[Entry], home: Home, spec: QueueSpec) -> dict[str, list[Any]]:
    """Payloads by id: equal ones merged (rule 2), the smallest score first, read back from their bytes.

    A missing score is the call's place, as if each came a moment after the one before. ``keep`` holds.
    """
    scores: dict[str, dict[bytes, float]] = {}
    for place, entry in enumerate(entries):
        data = home.codec.dump(entry.payload)
        score = float(place) if entry.score is None else entry.score
        known = scores.setdefault(entry.id, {})
        if data not in known or ((score > known[data]) == (spec.merge is Merge.MAX) and score != known[data]):
            known.pop(data, None)
            known[data] = score
    batch = {}
    for job_id, known in scores.items():
        kept = sorted(known, key=lambda data: known[data])[surplus(len(known), spec.policies.keep) :]
        batch[job_id] = [home.codec.load(data) for data in kept]
    return batch


def info(spec: QueueSpec, payloads_by_id: Mapping[str, list[Any]]) -> RunInfo:
    """``self.request.lowkiq`` of such a run: no lease, so no fence; scores are the payloads' places."""
    jobs = tuple(
        RunJob(job_id, tuple(payloads), tuple(map(float, range(len(payloads)))), -1, 0.0, None)
        for job_id, payloads in payloads_by_id.items()
    )
    return RunInfo(spec.name, shard_of(next(iter(payloads_by_id)), spec.shards), 0, jobs, threading.Event())


def seen(run: Callable[[], Any], payloads_by_id: Mapping[str, list[Any]]) -> Any:
    """What Celery is to see of a run: of a batch of one id its own value, or error."""
    (job_id, *others) = payloads_by_id
    try:
        result = failing(run)
    except (Again, BusinessFailure, JobsFailed, Retry) as error:
        said = meant(error)
        if isinstance(said, JobsFailed) and not others and said.errors.keys() == {job_id}:
            said = meant(said.errors[job_id])
        if isinstance(said, Again):
            # Without a queue nothing runs again, as with `self.retry`.
            said = Retry(str(said), when=said.after)  # type: ignore[arg-type]
        if said is error:
            raise
        raise said from error
    return result.get(job_id) if isinstance(result, ById) and not others else result


def run_bulk(task: Any, entries: list[Entry], home: Home) -> list[Any]:
    """Run a bulk call, ``batch_size`` ids at a time; ``task_eager_propagates`` decides about errors.

    Returns the EagerResult of each entry.
    """
    batch = batch_of(entries, home, task.queue_spec)
    ids = list(batch)
    size = task.queue_spec.batch_size
    results = {}
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        result = task.apply_batch({job_id: batch[job_id] for job_id in part})
        results.update({job_id: _own(result, job_id) for job_id in part})
    return [results[entry.id] for entry in entries]


def _own(result: Any, job_id: str) -> Any:
    """The result of one id of a batch."""
    value: Any = result.result
    state = result.state
    if isinstance(value, ById):
        value = value.get(job_id)
    elif isinstance(value, JobsFailed) and value.errors:
        value, state = value.errors.get(job_id), FAILURE if job_id in value.errors else SUCCESS
    return EagerResult(result.id, value, state, result.traceback)
