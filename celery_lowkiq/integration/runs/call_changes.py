"""Changes of a call by a retry: the payload and the record that the next run gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from celery.app.task import Context

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.records.call_record import TTL_ENDS, CallRecord
from celery_lowkiq.rules.models import PayloadChange, StoredRecord
from celery_lowkiq.rules.signatures import binds_score
from celery_lowkiq.store.jobs.call_records import digest
from celery_lowkiq.store.scripts.records import id_bytes

from .decode import DecodedJob
from .run import Run


class CallChanges(NamedTuple):
    """What ``self.retry`` gives the call; None: as it is."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    expires: Any = None
    headers: Mapping[str, Any] | None = None


def changed_call(run: Run, asked: CallChanges) -> PayloadChange | None:
    """The change of the run's only call; None for nothing.

    A run of several calls, and one whose payload is not a call, changes nothing that these calls or their
    payload would need. Raises InvalidCall for the arguments of another id, and PayloadError.
    """
    form, call = run.task.call_form, run.call
    payloads = run.decode_again()
    # With ``by=``, a payload is a call; with ``merge=``, it may be several.
    is_call = form.has_times and run.callers is None
    if call is None and is_call:
        call = CallRecord(form.task_id_of(payloads) or run.task_id)
    if call is None:
        return None
    ((job_id, (payload,)),) = payloads.items()
    job = run.decoded.jobs_by_id[job_id]
    data = signature = b""
    if is_call and (asked.args is not None or asked.kwargs is not None):
        data, signature = _payload(run, job, form.with_arguments(job_id, payload, asked.args, asked.kwargs))
    old, record = _stored(run, job), _record(run, call, asked)
    if not (data or record):
        return None
    position = job.positions[0]
    head = id_bytes(job_id) + b"\0" + digest(data or job.claimed.payloads[position].data)
    if old or record:
        gate, payload = run.rules.gate, job.claimed.payloads[position]
        signs = gate.is_signed_record(old) if old else gate.is_signed(job_id, payload)
        stored = run.rules.dump_record(StoredRecord(head, position, b""), record or call, signs)
        return PayloadChange(position, data, signature, head, stored, old.key if old else b"")
    return PayloadChange(position, data, signature)


def _payload(run: Run, job: DecodedJob, payload: Any) -> tuple[bytes, bytes]:
    """The bytes and the signature of a new payload, which is signed if the old one's signature verifies."""
    old = job.claimed.payloads[job.positions[0]]
    # Calls do not merge.
    data = context_of(run.task.app).call_codec.dump(payload)
    if data == old.data:
        return b"", b""
    if not run.rules.gate.is_signed(job.claimed.id, old):
        return data, b""
    score = old.score if binds_score(old.signature) else None
    queue = run.task.queue_spec.name
    return data, run.rules.gate.signing.sign_payload(queue, id_bytes(job.claimed.id), data, score)


def _stored(run: Run, job: DecodedJob) -> StoredRecord | None:
    """The call's record; None when it has none."""
    if run.call is None or job.claimed.calls is None:
        return None
    records = job.claimed.calls.records
    return next((each for each in records if run.rules.read_record(each).id == run.call.id), None)


def _record(run: Run, call: CallRecord, asked: CallChanges) -> CallRecord | None:
    """The call with another expiry and other headers of the user's; None when it is as before."""
    if asked.expires is None and asked.headers is None:
        return None
    headers = {name: value for name, value in call.headers.items() if name != TTL_ENDS}
    if asked.headers is not None:
        own = {name: value for name, value in asked.headers.items() if not hasattr(Context, name)}
        headers = {name: value for name, value in headers.items() if hasattr(Context, name)}
        headers = {**headers, "headers": own, **own}
    if asked.expires is not None:
        message = run.task.app.amqp.as_task_v2(call.id, run.task.name, expires=asked.expires)
        headers["expires"] = message.headers["expires"]
    return replace(call, headers=headers)
