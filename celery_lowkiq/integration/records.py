"""Call records: parts of a call that are kept until its job has ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from celery import signals
from celery.app.task import Context
from celery.utils.time import maybe_iso8601

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.codec import MARK, Codec, dump_json
from celery_lowkiq.integration.gate import Gate, Unverified
from celery_lowkiq.integration.results import stores_error, stores_result
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import (
    InvalidCall,
    LowkiqError,
    PayloadError,
    ResultsUnavailable,
    UndecodablePayload,
)
from celery_lowkiq.rules.links import FIELDS, links_fault
from celery_lowkiq.rules.models import StoredRecord
from celery_lowkiq.rules.retry import MAX_RETRY_DELAY
from celery_lowkiq.rules.signatures import split_record
from celery_lowkiq.rules.tracking import State, TrackerUpdate, ended_without_run
from celery_lowkiq.rules.validators import run_limit

# Durations in options and calls: a number of seconds, or a ``timedelta``.


def seconds_of(value: Any) -> float | None:
    """Seconds of a number or timedelta; None for what is neither, or not within (0, MAX_RETRY_DELAY]."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 < value <= MAX_RETRY_DELAY else None


# Known headers: those that the requests of a call read. Callers may send any value in them.
#
# A known header of another type than its own is left out, and the call runs without it.

_Type: TypeAlias = type | tuple[type, ...]

#: The types. The last headers are always left out: a message has its links elsewhere, and the others are the
#: worker's.
KNOWN: Mapping[str, _Type] = {
    **dict.fromkeys(("group", "parent_id", "root_id", "reply_to", "shadow"), str),
    **dict.fromkeys(("argsrepr", "kwargsrepr", "origin", "taskset"), str),
    **dict.fromkeys(("group_index", "replaced_task_nesting", "retries"), int),
    **dict.fromkeys(("headers", "properties", "stamps"), Mapping),
    **dict.fromkeys(("stamped_headers", "timelimit"), (list, tuple)),
    **dict.fromkeys(("expires", "lowkiq_ttl_ends"), (str, datetime)),
    **dict.fromkeys(FIELDS, ()),
    **dict.fromkeys(("args", "kwargs", "correlation_id", "delivery_info", "hostname"), ()),
    **dict.fromkeys(("lowkiq_play", "lowkiq_run"), ()),
}


def usable(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers, without each known one that has another type than its own."""
    if not headers:
        return headers
    wrong = [
        name
        for name, value in headers.items()
        if value is not None
        and (kind := KNOWN.get(name)) is not None
        and not (isinstance(value, kind) and (name not in _CHECKS or _CHECKS[name](value)))
    ]
    return {name: value for name, value in headers.items() if name not in wrong} if wrong else headers


def _is_time(value: Any) -> bool:
    try:
        return maybe_iso8601(value) is not None
    except ValueError:
        return False


#: Further checks of values of the right type.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "expires": _is_time,
    "lowkiq_ttl_ends": _is_time,
    "stamped_headers": lambda names: all(isinstance(name, str) for name in names),
    # A hard and a soft limit in s, or None for each.
    "timelimit": lambda limits: len(limits) == 2 and all(map(run_limit.accepts, limits)),
}


# Call record: what is stored of a call until its job has ended, for its result, links and tracker.
#
# A record is ``[task id, headers, embedded signatures, tracker]``, without empty parts at its end. When the
# serializer is not JSON, the same list without headers and signatures stands in front as JSON: so a record
# that cannot be read still names its call, and the call can end as FAILURE.

#: Our header: score, perform_in and priority of a call by name.
HEADER = "lowkiq"
#: Headers that each run has, or that have become the job's own.
NOT_KEPT = frozenset(
    {
        "lang",
        "task",
        "id",
        "eta",
        "retries",
        "timelimit",
        "argsrepr",
        "kwargsrepr",
        "origin",
        "properties",
        "root_id",
        HEADER,
    }
)
#: Our header: when a call's time to live ends (ISO 8601, UTC).
TTL_ENDS = "lowkiq_ttl_ends"
#: Headers that place a call among others; a call with no other headers needs no record.
PLACE = frozenset({"root_id", "parent_id", "group", "group_index", "ignore_result", "reply_to"})
#: Where a record that cannot be read names its call and its tracker.
_CALL = re.compile(rb'\[("(?:[^"\\]|\\.){1,1024}")')
_TRACKER = re.compile(rb',"([0-9a-f]{32})"\]$')
NOTHING: Mapping[str, Any] = {}
_KINDS: dict[str, type] = {"id": str, "headers": Mapping, "embed": Mapping, "tracker": str}


@dataclass(frozen=True)
class CallRecord:
    """The record of a call. ``embed``: callbacks, errbacks, chain and chord."""

    id: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    embed: Mapping[str, Any] = field(default_factory=dict)
    #: Id of its tracker; "" for none.
    tracker: str = ""

    def before_its_job_failed(self) -> CallRecord:
        """The call while its job has not failed: its time to live is its expiry, if it has no other."""
        ends = self.headers.get(TTL_ENDS)
        if ends is None or self.headers.get("expires"):
            return self
        return replace(self, headers={**self.headers, "expires": ends})

    def started(self) -> CallRecord | None:
        """The call once a run has begun, without its time to live; None if it has none."""
        if TTL_ENDS not in self.headers:
            return None
        return replace(self, headers={name: v for name, v in self.headers.items() if name != TTL_ENDS})

    def dump(self, codec: Codec) -> bytes:
        """The record. Raises PayloadError."""
        try:
            data = codec.dump(self._parts())
        except PayloadError as error:
            raise PayloadError(f"headers, links or chord of call {self.id}: {error}") from error
        if data.startswith(MARK):
            return dump_json(replace(self, headers={}, embed={})._parts()) + data
        return data

    def _parts(self) -> list[Any]:
        parts = [self.id, dict(self.headers), dict(self.embed), self.tracker]
        while not parts[-1]:
            parts.pop()
        return parts

    @classmethod
    def verified(cls, stored: StoredRecord, gate: Gate) -> CallRecord:
        """The call of a stored record. Raises Unverified, UndecodablePayload."""
        parts = gate.load_record(stored)
        if not isinstance(parts, (list, tuple)) or not 1 <= len(parts) <= len(_KINDS):
            raise UndecodablePayload("no record of a call: expected a list of its parts")
        for part, (name, kind) in zip(parts, _KINDS.items(), strict=False):
            if not isinstance(part, kind):
                raise UndecodablePayload(f"no record of a call: its {name} is not a {kind.__name__}")
        if len(parts) > 1:
            parts = [parts[0], usable(parts[1]), *parts[2:]]
        record = cls(*parts)
        if record.embed:
            gate.check_links(record.embed)
            if (fault := links_fault(record.embed)) is not None:
                raise UndecodablePayload(fault)
        return record

    @classmethod
    def named(cls, data: bytes) -> CallRecord | None:
        """The id and tracker that an unreadable record names; None when it names none.

        They are not verified: use them only to report that the call has failed.
        """
        head = split_record(data)[1].partition(MARK)[0]
        found, tracker = _CALL.match(head), _TRACKER.search(head)
        if found is None:
            return None
        try:
            return cls(json.loads(found[1]), tracker=tracker[1].decode() if tracker else "")
        except ValueError:
            return None


def make_record(
    task: Any,
    headers: Mapping[str, Any],
    embed: Mapping[str, Any] | None,
    properties: Mapping[str, Any],
    track: bool,
    tracker: str = "",
    shown: Mapping[str, str] = NOTHING,
) -> CallRecord | None:
    """The record of the call in a message; None when nothing will need it.

    ``shown``: the texts that events and logs are to show in place of its arguments. Raises InvalidCall for
    links that are no signatures.
    """
    stored = stores_error(task, headers.get("ignore_result"))
    # A header of the user's own is kept always, one of Celery's if it has a value.
    kept = {
        name: value
        for name, value in headers.items()
        if name not in NOT_KEPT and (value or not hasattr(Context, name))
    }
    app_id = properties.get("app_id")
    # Only the function reads the app's id, in ``request.properties``.
    kept |= {**shown, "properties": {"app_id": app_id}} if app_id else shown
    limits = list(headers.get("timelimit") or ())
    if limits not in ([], [None, None], [task.time_limit, task.soft_time_limit]):
        kept["timelimit"] = limits
    if headers.get("root_id") not in (None, headers["id"]):
        kept["root_id"] = headers["root_id"]
    ignored = bool(kept.pop("ignore_result", False))
    if ignored != bool(task.ignore_result):
        kept["ignore_result"] = ignored
    if kept.get("group") is not None:
        kept["group_index"] = headers.get("group_index")
    if task.job_ttl is not None and not headers.get("expires"):
        ends = task._get_app().now() + timedelta(seconds=seconds_of(task.job_ttl) or 0.0)
        kept[TTL_ENDS] = ends.isoformat()
    embedded = _embedded(embed)
    if not (stored or embedded or track or tracker or kept.keys() - PLACE):
        return None
    if stored and properties.get("reply_to") and task.backend.as_uri().startswith("rpc"):
        kept["reply_to"] = properties["reply_to"]
    return CallRecord(str(headers["id"]), kept, embedded, tracker)


def _embedded(embed: Mapping[str, Any] | None) -> dict[str, Any]:
    """The links of a message. Raises InvalidCall."""
    found = {name: value for name, value in (embed or {}).items() if value}
    if found and (fault := links_fault(found)) is not None:
        raise InvalidCall(fault)
    return found


def limits_of(call: Any) -> tuple[float | None, float | None]:
    """Hard and soft time limit in s of the call of a run; None: the limit of its task."""
    hard, soft = getattr(call, "headers", NOTHING).get("timelimit") or (None, None)
    return hard, soft


def store_state(task: Any, records: Iterable[CallRecord], state: Any, meta: Any, **options: Any) -> None:
    """Store an intermediate state for each call whose result is stored."""
    for record in records:
        if stores_result(task, record.headers.get("ignore_result")):
            # Backends such as rpc:// send the result to the address in the call's request.
            place = {"id": record.id, "task": task.name, "correlation_id": record.id, "delivery_info": {}}
            request = Context({**place, **record.headers})
            task.backend.store_result(record.id, meta, state, **{"request": request, **options})


# Finishes orphaned calls, whose jobs were deleted, buried or dropped: they get their results.

BURIED = "an operator moved the job to the morgue"
DELETED = "the job was deleted"
DROPPED = "the payload was dropped by a policy of the task"
SUPERSEDED = "superseded by a newer call of the same id"


class BuriedByOperator(LowkiqError):
    """An operator moved the job to the morgue."""


def finish_orphaned_calls(
    task: Any, calls: Sequence[StoredRecord], dead: bool, reason: str = DELETED
) -> None:
    """Give calls their final state: FAILURE if ``dead``, their payloads being in the morgue, else REVOKED.

    Their chords fail. Raises ResultsUnavailable.
    """
    context = context_of(task._get_app())
    gate = context.gate(task.queue_spec.name)
    news: list[TrackerUpdate] = []
    for call in calls:
        try:
            record = CallRecord.verified(call, gate)
        except UndecodablePayload as error:
            news += fail_unread(task, call, error)
            continue
        if dead:
            fail(task, record, BuriedByOperator(BURIED))
            news += end_of_call(record, BURIED, State.ERROR)
        else:
            _revoke(task, record, reason)
            news += end_of_call(record, reason)
    if news:
        context.tracker_store.update(news)


def end_of_call(record: CallRecord, text: str, state: State = State.FAILED) -> list[TrackerUpdate]:
    """The update for the tracker of a call that does not run, if it has one."""
    return [ended_without_run(record.tracker, record.id, state, text)] if record.tracker else []


def fail_unread(task: Any, call: StoredRecord, reason: UndecodablePayload) -> list[TrackerUpdate]:
    """End a call whose record cannot be read: FAILURE, without its unverified links and chord.

    A call that the record does not name, or not verifiably, ends with a line in the log only. Returns the
    update for its tracker. Raises ResultsUnavailable.
    """
    if isinstance(reason, Unverified):
        logger.error(
            "a record of a call of %s is refused, and its call gets no result: %s", task.name, reason
        )
        return []
    text = f"the record of the call cannot be read: {reason}"
    record = CallRecord.named(call.data)
    if record is None:
        logger.error("a call of %s ends without a result, because its id is unknown: %s", task.name, text)
        return []
    logger.error("call %s of %s ends as FAILURE: %s", record.id, task.name, text)
    fail(task, record, UndecodablePayload(text))
    return end_of_call(record, text)


def fail(task: Any, record: CallRecord, error: Exception) -> None:
    """End a call that does not run: FAILURE, also of its chord; calls its errbacks.

    Raises ResultsUnavailable.
    """
    _end(task, record, task.backend.mark_as_failure, error)


def _revoke(task: Any, record: CallRecord, reason: str) -> None:
    request = _end(task, record, task.backend.mark_as_revoked, reason)
    signals.task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


def _end(task: Any, record: CallRecord, mark: Callable[..., Any], result: Exception | str) -> Context:
    """Have the result backend ``mark`` a call. Returns the call's request. Raises ResultsUnavailable."""
    headers = {"id": record.id, "root_id": record.id, "task": task.name, "delivery_info": {}}
    request = Context({**headers, **record.headers, **record.embed})
    stored = stores_error(task, record.headers.get("ignore_result"))
    try:
        mark(record.id, result, request=request, store_result=stored)
    except Exception as error:
        raise ResultsUnavailable(
            f"the result backend is not available: {type(error).__name__}: {error}"
        ) from error
    return request
