"""The recorded call of a plain run, which needs nothing but its result to be stored, or not even that."""

from __future__ import annotations

from typing import NamedTuple

from celery_lowkiq.integration.records.call_record import PLACE, CallRecord
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Recorded

from .decisions import RunRules


class PlainCall(NamedTuple):
    """A call without links, chord, tracker, expiry and headers of the user's."""

    #: Key of its record.
    key: bytes
    record: CallRecord
    #: Whether its result is stored.
    stores_result: bool


def only_call(batch: Batch, rules: RunRules) -> tuple[bytes, CallRecord] | None:
    """Key and record of the only call of a batch with one payload; None when there is none."""
    if len(batch.jobs) != 1:
        return None
    (job,) = batch.jobs
    found = job.calls
    if found is None or not found.complete or len(found.records) != 1 or len(job.payloads) != 1:
        return None
    if job.payloads[0].recorded is not Recorded.ALL or job.retry_count == POISON_PILL_RETRY_COUNT:
        return None
    try:
        return found.records[0].key, rules.read_record(found.records[0])
    except UndecodablePayload:
        return None


def plain_call(batch: Batch, rules: RunRules) -> PlainCall | None:
    """The only call of a batch with one payload; None when there is none, or it needs Celery's tracer."""
    found = only_call(batch, rules)
    if found is None:
        return None
    key, record = found
    if record.embed or record.tracker or not PLACE.issuperset(record.headers):
        return None
    stores_result = not record.headers.get("ignore_result", rules.task.ignore_result)
    # Celery's tracer also stores the state STARTED.
    if stores_result and rules.task.track_started:
        return None
    return PlainCall(key, record, stores_result)
