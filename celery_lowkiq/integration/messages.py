"""Celery's messages of calls: producers, headers, and calls without a message."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain, repeat
from numbers import Real
from pickle import PicklingError
from typing import Any, NoReturn

from celery import Celery, Task, signals
from celery._state import get_current_worker_task
from celery.app.amqp import AMQP
from celery.app.defaults import DEFAULTS
from celery.utils.saferepr import saferepr
from kombu import Queue
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.call_form import CallForm
from celery_lowkiq.integration.calls import (
    SHOWN,
    id_of,
    priority_of,
    read_id,
    read_priority,
    read_score,
    read_time,
)
from celery_lowkiq.integration.publish import CUT, publish, retry_intervals
from celery_lowkiq.integration.records import HEADER, NOTHING, make_record, usable
from celery_lowkiq.integration.settings import celery_setting, read_setting
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.redaction import MASK, Redactor, load_beginning
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.worker.forks import ProcessLock

# Reads a call from Celery's message, and from its header ``lowkiq``.
#
# A call by name gives its score, time and priority in that header, from any app and language, or in a
# canvas.

#: Keys of the header ``lowkiq``.
WORDS = ("score", "perform_in", "priority")
#: Key that the sender's app adds with lowkiq_message_score="sent": when it sent the message (Unix s).
SENT = "sent"


@dataclass(frozen=True)
class MessagedCall:
    """A call in the parts of protocol 2."""

    args: Any
    kwargs: Any
    embed: Mapping[str, Any]
    headers: Mapping[str, Any]
    #: Properties of the message, as its producer got them.
    properties: Mapping[str, Any] = field(default_factory=dict)


def read_call(body: Any, headers: Any, properties: Mapping[str, Any] = NOTHING) -> MessagedCall:
    """Read a message of protocol 2, or of protocol 1, which many other clients send: all in the body.

    Raises InvalidCall for any other body, and for an ``expires`` that is no time.
    """
    if not isinstance(body, dict):
        if not isinstance(body, (list, tuple)) or len(body) != 3:
            raise InvalidCall(
                f"body={saferepr(body, SHOWN)} is invalid: expected [args, kwargs, embed], as Celery sends it"
            )
        args, kwargs, embedded = body
        if embedded is not None and not isinstance(embedded, Mapping):
            raise InvalidCall(f"embed={saferepr(embedded, SHOWN)} is invalid: expected a mapping or null")
        return MessagedCall(args, kwargs, embedded or {}, _checked(headers or {}), properties)
    embed = {name: body.get(name) for name in ("callbacks", "errbacks", "chord")}
    own = {name: body.get(name) for name in ("id", "eta", "expires", "timelimit")} | {
        "group": body.get("taskset")
    }
    return MessagedCall(body.get("args"), body.get("kwargs"), embed, _checked({**headers, **own}), properties)


def _checked(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    checked = usable(headers)
    if checked is not headers and "expires" in headers.keys() - checked.keys():
        raise InvalidCall(invalid("expires", headers["expires"], "a time of ISO 8601 in the headers"))
    return checked


def read_header(headers: Mapping[str, Any], tz: tzinfo | None) -> Mapping[str, Any]:
    """The checked values of the header ``lowkiq`` by their names. Raises InvalidCall."""
    given = headers.get(HEADER)
    if given is None:
        return NOTHING
    if not isinstance(given, Mapping) or given.keys() - {*WORDS, SENT}:
        raise InvalidCall(
            f"headers={{'{HEADER}': {saferepr(given, SHOWN)}}} is invalid: expected a mapping with the keys "
            f"{', '.join(WORDS)}. Other headers of a call stand beside {HEADER!r}"
        )
    times = {name: given[name] for name in ("perform_in", SENT) if given.get(name) is not None}
    values = {"score": read_score(given.get("score"), tz), "priority": read_priority(given.get("priority"))}
    values |= {name: read_time(name, value, tz) for name, value in times.items()}
    return {name: value for name, value in values.items() if value is not None}


def with_header(call: Call, values: Mapping[str, Any]) -> Call:
    """The call with values of its header. Raises InvalidCall for one that the call has already."""
    if not values:
        return call
    given = {"score": call.score, "priority": call.priority}
    given["perform_in"] = call.delay if call.perform_in is None else call.perform_in
    for name in WORDS:
        if (value := values.get(name)) is not None and given[name] is not None:
            raise InvalidCall(
                f"headers={{'{HEADER}': {{{name!r}: {value!r}}}}} is invalid: expected no {name} beside "
                f"that of the call, {given[name]!r}. Take one of them out"
            )
    return call._replace(**{name: value for name, value in values.items() if name != SENT})


def take_header(options: dict[str, Any], tz: tzinfo | None) -> Mapping[str, Any]:
    """Take the header ``lowkiq`` out of the options of a call, and read it. Raises InvalidCall."""
    headers = options.get("headers") or {}
    if HEADER not in headers:
        return NOTHING
    rest = {name: value for name, value in options.pop("headers").items() if name != HEADER}
    if rest:
        options["headers"] = rest
    return read_header(headers, tz)


# Replaces kombu's producer: Celery publishes an ordered call here, in place of the broker.


class StoreRouter:
    """Routes each call to its ordered queue: no ``task_routes``, and no broker queue is declared."""

    def __init__(self, name: str) -> None:
        self._queue = Queue(name, routing_key=name)

    def route(self, options: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        """The options with the ordered queue, for receivers of publish signals."""
        return {**options, "queue": self._queue}


class StoreProducer:
    """A producer for ``Task.apply_async``: its ``publish`` makes the call of the message, and pushes it.

    Celery does everything else around a publish: signals, headers, the result.
    """

    auto_declare = False
    serializer = None

    def __init__(
        self, task: Any, call: Call, made: Mapping[str, Any], tracker: str = "", pushes: bool = True
    ) -> None:
        """``made``: what receivers may replace in the message of the call, see ``announced``.

        ``tracker``: id of the call's tracker. ``pushes``: False for a call that is pushed with others later.
        """
        self._task = task
        self._app = task._get_app()
        self._made = made
        self._tracker = tracker
        self._pushes = pushes
        self.call: Call = call
        #: True if Celery has published the message.
        self.published: bool = False
        self.connection: Any = context_of(self._app).connection

    @property
    def channel(self) -> Any:
        """The broker's channel, on which a result backend of the broker declares its queue."""
        return self.connection.default_channel

    def publish(self, body: Any, exchange: Any = None, headers: Any = None, **properties: Any) -> None:
        """Push the call with what its message says. Celery's own events go to the broker.

        Raises TypeError, InvalidCall, PayloadError, StoreError.
        """
        if getattr(exchange, "name", exchange) == "celeryev":
            with self._app.producer_pool.acquire(block=True) as producer:
                producer.publish(body, exchange=exchange, headers=headers, **properties)
            return
        self.published = True
        message = read_call(body, headers, properties)
        self.call = messaged_call(self._task, self.call, self._made, message, self._tracker)
        if self._pushes:
            intervals = retry_intervals(properties.get("retry"), properties.get("retry_policy"))
            context = context_of(self._app)
            middlewares = context.settings.client_middlewares
            publish(context, self._task, (self.call,), intervals, middlewares, self._tracker)

    def revive(self, channel: Any) -> None:
        """Do nothing: there is no channel to renew."""

    def __enter__(self) -> StoreProducer:
        return self

    def __exit__(self, *error: object) -> None:
        return None


# Overrides of Celery's ``send_task`` and ``apply_async``: tracers, which pass a call on, and outboxes.
#
# An outbox keeps a call and sends it later by name. It would lose the score, which no message carries.

#: Option by which an override is tested: it can be passed on, and not stored.
PASSED_ON = "lowkiq"
#: Errors of serializers for an object that they cannot serialize.
UNSTORABLE = (TypeError, ValueError, PicklingError)


class OnlyPassedOn:
    """The value of that option. An outbox that serializes it fails before it has stored the call."""

    def __str__(self) -> str:
        raise TypeError(f"{self!r} cannot be stored")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be stored")

    def __repr__(self) -> str:
        return "<arguments of a call of an ordered task that no message carries>"


def beyond_message(call: Call, tracker: str = "", has_eta: bool = False) -> dict[str, Any]:
    """The arguments of the call that Celery's message does not carry, by the names that callers use."""
    given = {"score": call.score, "countdown": call.delay, "priority": call.priority}
    given["eta" if has_eta else "perform_in"] = call.perform_in
    return {n: v for n, v in {**given, "tracker": tracker or None}.items() if v is not None}


def is_mocked(app: Celery) -> bool:
    """Test for a mock of a test, which loses nothing."""
    return any(hasattr(sender, "assert_called_with") for sender in (app.send_task, Task.apply_async))


def lost(name: str, beyond: Mapping[str, Any], override: str) -> InvalidCall:
    """The error of a call of the task ``name``: an override of sending would lose ``beyond``.

    ``beyond``: the arguments that no message carries.
    """
    shown = ", ".join(f"{word}={saferepr(value, SHOWN)}" for word, value in beyond.items())
    return InvalidCall(
        f"{shown} of a call of {name} is invalid: expected only an id and a payload, because {override} "
        "keeps the call to send it by name, and would lose the rest. Leave it out, or exclude the task there"
    )


# Masks what ``lowkiq_redact`` names in the payloads and arguments of a task.
#
# With ``by=`` the arguments given by position have the names of the function's parameters.


def masked_arguments(form: CallForm, args: Sequence[Any], redactor: Redactor) -> list[Any]:
    """Positional arguments with masks, also within them."""
    return [MASK if redactor.covers(name) else redactor.value(value) for name, value in _named(form, args)]


@lru_cache(maxsize=1024)
def covers_positions(parameters: tuple[str, ...], redactor: Redactor) -> bool:
    """Test whether arguments by position have names of secrets."""
    return any(map(redactor.covers, parameters))


def masked_payload(form: CallForm | None, payload: Any, redactor: Redactor) -> Any:
    """Mask a payload. It may have any shape, because anybody may have written it."""
    if form is None:
        return redactor.value(payload)
    if isinstance(payload, str) and form.parameters:
        # The beginning of a call with `by=`, as a tracker keeps of a large one.
        shown = masked_beginning(form, payload.removesuffix(CUT), redactor)
        return payload if shown is None else f"{shown}{CUT}"
    masked = redactor.value(payload)
    if args := _positional(form, payload):
        masked["args"] = masked_arguments(form, args, redactor)
    return masked


def masked_beginning(form: CallForm | None, text: str, redactor: Redactor) -> str | None:
    """Mask the beginning of a JSON payload; None: unchanged, because no secret can be in it."""
    if not may_have_secrets(form, text, redactor):
        return None
    try:
        return json.dumps(masked_payload(form, load_beginning(text), redactor), ensure_ascii=False)
    except (ValueError, RecursionError):
        return MASK


def may_have_secrets(form: CallForm | None, text: str, redactor: Redactor) -> bool:
    """Test whether JSON may have a secret: in a position, or by a name, which an escape could spell."""
    positions = form.parameters if form else ()
    return covers_positions(positions, redactor) or "\\u" in text or redactor.may_have(text)


def payload_secrets(form: CallForm, payloads: Iterable[Any], redactor: Redactor) -> set[str]:
    """Values that are masked in payloads; a text may quote them."""
    found: set[str] = set()
    for payload in payloads if redactor else ():
        found |= redactor.secrets(payload)
        if args := _positional(form, payload):
            for name, value in _named(form, args):
                found |= redactor.secrets({name: value})
    return found


def _named(form: CallForm, args: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Arguments by position with their names."""
    return zip(chain(form.parameters, repeat(form.parameters[-1])), args, strict=False)


def _positional(form: CallForm, payload: Any) -> Sequence[Any]:
    """The arguments of a payload that have names by their positions."""
    args = payload.get("args") if form.parameters and isinstance(payload, Mapping) else ()
    return args if isinstance(args, (list, tuple)) else ()


# The message of a call, as receivers of ``before_task_publish`` get it and leave it.

#: Headers with the arguments as events and logs show them.
SHOWN_ARGUMENTS = ("argsrepr", "kwargsrepr")
#: A setting since Celery 5.7.
LEVELS = "task_repr_maxlevels"
#: Arguments of a message may have become lists on their way.
_BRACKETS = str.maketrans("()", "[]")


def announced(task: Any, call: Call, args: Any, kwargs: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Add to the options of a message what its receivers are to see. Returns what they may replace."""
    app = task._get_app()
    given = [name for name in SHOWN_ARGUMENTS if options.get(name) is not None]
    if not (signals.before_task_publish.receivers or signals.after_task_publish.receivers):
        return dict.fromkeys(given)
    eta = _eta_of(app, call)
    if eta is not None:
        options["headers"] = {**(options.get("headers") or {}), "eta": eta}
    # Celery's own texts: a text that differs is a receiver's.
    made = {name: None if name in given else text for name, text in _default_texts(app, args, kwargs).items()}
    options |= {name: text for name, text in made.items() if text is not None}
    own_id = {"id": call.id} if task.key is not None and not _finds_id(task.key, call) else {}
    return {"eta": eta, **made, **own_id}


def messaged_call(
    task: Any, call: Call, made: Mapping[str, Any], message: MessagedCall, tracker: str
) -> Call:
    """The call with what its message says, and its record. Raises TypeError, InvalidCall, PayloadError."""
    if signals.before_task_publish.receivers:
        call = _as_published(task, call, made, message)
    record = record_of(task, message, tracker, shown_arguments(task, made, message) if made else {})
    priority, task_id = priority_of(message.properties), message.headers["id"]
    return call._replace(record=record, priority=priority, task_id=task_id)


def record_of(task: Any, message: MessagedCall, tracker: str, shown: Mapping[str, str]) -> bytes | None:
    """The record of a call; None when nothing needs one. Raises PayloadError.

    ``shown``: what events and logs show in place of its arguments.
    """
    context = context_of(task._get_app())
    track = context.settings.track_calls
    record = make_record(task, message.headers, message.embed, message.properties, track, tracker, shown)
    return None if record is None else record.dump(context.record_codec)


def recorded_calls(task: Any, calls: Sequence[Call], results: bool, tracker: str) -> Sequence[Call]:
    """Calls of a list without messages: with task ids and records where something needs them.

    ``results``: whether the caller gets their results. Raises PayloadError.
    """
    app = task._get_app()
    context = context_of(app)
    track = context.settings.track_calls
    if not (results or track or tracker or task.expires or task.job_ttl):
        return calls
    headers = {
        **_parents(),
        "expires": _expiry(task.expires, app.now()),
        "ignore_result": task.ignore_result or not results,
    }
    record = make_record(task, {"id": "", **headers}, None, {"reply_to": app.thread_oid}, track, tracker)
    ids = [uuid() for _ in calls]
    if record is None:
        return [call._replace(task_id=task_id) for call, task_id in zip(calls, ids, strict=True)]
    records = (replace(record, id=task_id).dump(context.record_codec) for task_id in ids)
    return [
        call._replace(task_id=task_id, record=data)
        for call, task_id, data in zip(calls, ids, records, strict=True)
    ]


def _parents() -> dict[str, Any]:
    caller: Any = get_current_worker_task()
    if caller is None:
        return {}
    return {"root_id": caller.request.root_id or caller.request.id, "parent_id": caller.request.id}


def _expiry(expires: Any, now: datetime) -> str | None:
    if isinstance(expires, Real):
        expires = now + timedelta(seconds=float(expires))
    return expires.isoformat() if isinstance(expires, datetime) else expires


def _as_published(task: Any, call: Call, made: Mapping[str, Any], message: MessagedCall) -> Call:
    """The call as the receivers have left its message."""
    app = task._get_app()
    headers, tz = message.headers, app.timezone
    values: dict[str, Any]
    if headers.get("task") != task.name:
        fix = "Call the other task from the receiver"
        raise InvalidCall(invalid("task", headers.get("task"), f"{task.name!r} in the headers", fix))
    if "id" in made:
        job_id, (payload,) = made["id"], message.args
    else:
        job_id, payload = task.call_form.read(message.args, message.kwargs, headers["id"], task.typing)
    values = {"id": read_id(job_id), "payload": payload}
    if (eta := headers.get("eta")) != made.get("eta"):
        values |= {"perform_in": None if eta is None else read_time("eta", eta, tz), "delay": None}
    values |= read_header(headers, tz)
    timed: Call = task.call_form.timed(call._replace(**values), time.time())
    codec = context_of(app).codecs[task.call_form.merges]
    return timed._replace(data=codec.dump(timed.payload))


def shown_arguments(task: Any, made: Mapping[str, Any], message: MessagedCall) -> dict[str, str]:
    """The arguments as a caller or a receiver wants events and logs to show them."""
    redactor = context_of(task._get_app()).settings.redactor
    found = {name: message.headers.get(name) for name in SHOWN_ARGUMENTS if name in made}
    return {
        name: redactor.text(text) for name, text in found.items() if text is not None and text != made[name]
    }


def shown_by_sender(task: Any, message: MessagedCall) -> dict[str, str]:
    """Arguments of a call by name as its sender wants them shown; none where positional ones are masked."""
    app = task._get_app()
    if covers_positions(task.call_form.parameters, context_of(app).settings.redactor):
        return {}
    made = {
        name: _comparable(text) for name, text in _default_texts(app, message.args, message.kwargs).items()
    }
    found = shown_arguments(task, dict.fromkeys(made), message)
    return {name: text for name, text in found.items() if _comparable(message.headers[name]) != made[name]}


def _finds_id(key: Any, call: Call) -> bool:
    """Test whether ``key=`` finds the id of a call: a bulk call may give another one."""
    try:
        return read_id(id_of(key, call.payload)) == call.id
    except InvalidCall:
        return False


def _eta_of(app: Any, call: Call) -> str | None:
    if call.delay is not None:
        now: datetime = app.now()
        return (now + timedelta(seconds=call.delay)).isoformat()
    return (
        None if call.perform_in is None else datetime.fromtimestamp(call.perform_in, app.timezone).isoformat()
    )


def _default_texts(app: Any, args: Any, kwargs: Any) -> dict[str, str]:
    levels = {"maxlevels": celery_setting(app, LEVELS)} if LEVELS in DEFAULTS else {}
    return {
        "argsrepr": saferepr(args or (), app.amqp.argsrepr_maxsize, **levels),
        "kwargsrepr": saferepr(kwargs or {}, app.amqp.kwargsrepr_maxsize, **levels),
    }


def _comparable(text: Any) -> str:
    return str(text).translate(_BRACKETS).replace(",]", "]")


# Stamps messages with their time of sending, in apps whose ``lowkiq_message_score`` is "sent".


class SendingTimes:
    """Unix times in s, each at least 1 us after the one before: calls of a process never have equal ones."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = ProcessLock()
        self._last_us = 0

    def next(self) -> float:
        """The time of one message."""
        with self._lock:
            self._last_us = max(self._now_ns() // 1000, self._last_us + 1)
            return self._last_us / 1_000_000


_times = SendingTimes()


def stamped(headers: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The headers of a message that is sent now. One with a score needs no time.

    The receiver refuses an invalid header.
    """
    headers = headers or {}
    given = headers.get(HEADER) or {}
    if not isinstance(given, Mapping) or given.get("score") is not None or SENT in given:
        return headers
    return {**headers, HEADER: {**given, SENT: _times.next()}}


def _stamping(app: Any, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def send_stamped(producer: Any, name: str, message: Any, headers: Any = None, **options: Any) -> Any:
        # A task that this app does not have may be ordered.
        task = app._tasks.get(name)
        may_be_ordered = task is None or hasattr(type(task), "queue_spec")
        if may_be_ordered and not isinstance(producer, StoreProducer):
            headers = stamped(headers)
        return send(producer, name, message, headers=headers, **options)

    return send_stamped


def install() -> None:
    """Have each app of this process read its setting when it sends its first message.

    A signal does not tell the app of a message, and its receiver would end the fast path of ordered calls.
    """
    factory: Any = AMQP
    create = factory._create_task_sender

    @functools.wraps(create)
    def create_sender(self: Any) -> Callable[..., Any]:
        send: Callable[..., Any] = create(self)
        return _stamping(self.app, send) if read_setting(self.app, "message_score") == "sent" else send

    factory._create_task_sender = create_sender
