"""Celery's messages of calls: producers, headers, and calls without a message."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from pickle import PicklingError
from typing import Any, NoReturn, TypeVar

from celery import Celery, Task, signals
from celery._state import (  # type: ignore[attr-defined]
    get_current_worker_task,
    pop_current_task,
    push_current_task,
)
from celery.app import base, task
from celery.app.amqp import AMQP
from celery.app.defaults import DEFAULTS
from celery.utils.saferepr import saferepr
from kombu import Queue
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.call_form import CallForm
from celery_lowkiq.integration.current import current_worker_task
from celery_lowkiq.integration.records import HEADER, stores_error, usable
from celery_lowkiq.integration.settings import celery_setting, read_setting
from celery_lowkiq.integration.validation import (
    SHOWN,
    Entry,
    id_of,
    priority_of,
    read_id,
    read_priority,
    read_score,
    read_time,
)
from celery_lowkiq.rules.basics import is_defined_in
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.redaction import MASK, Redactor, load_beginning
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.worker.forks import ProcessLock

# Reads a call from Celery's message, and from its header ``lowkiq``.
#
# A call by name gives its score, time and priority in that header, from any app and language, or in a
# canvas.

NO_PROPERTIES: Mapping[str, Any] = {}
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


def read_call(body: Any, headers: Any, properties: Mapping[str, Any] = NO_PROPERTIES) -> MessagedCall:
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


@dataclass(frozen=True)
class HeaderValues:
    """The checked values of the header ``lowkiq``; None: not given."""

    score: float | None = None
    perform_in: float | None = None
    priority: int | None = None
    #: Unix time (s) of the sender's clock.
    sent: float | None = None

    def added_to(self, entry: Entry) -> Entry:
        """The call with these values. Raises InvalidCall for a value that the call has already."""
        if self is NO_VALUES:
            return entry
        given = {"score": entry.score, "priority": entry.priority}
        given["perform_in"] = entry.delay if entry.perform_in is None else entry.perform_in
        values = {name: value for name in WORDS if (value := getattr(self, name)) is not None}
        for name, value in values.items():
            if given[name] is not None:
                raise InvalidCall(
                    f"headers={{'{HEADER}': {{{name!r}: {value!r}}}}} is invalid: expected no {name} beside "
                    f"that of the call, {given[name]!r}. Take one of them out"
                )
        return entry._replace(**values) if values else entry


NO_VALUES = HeaderValues()


def read_header(headers: Mapping[str, Any], tz: tzinfo | None) -> HeaderValues:
    """The values of the header ``lowkiq``. Raises InvalidCall."""
    given = headers.get(HEADER)
    if given is None:
        return NO_VALUES
    if not isinstance(given, Mapping) or given.keys() - {*WORDS, SENT}:
        raise InvalidCall(
            f"headers={{'{HEADER}': {saferepr(given, SHOWN)}}} is invalid: expected a mapping with the keys "
            f"{', '.join(WORDS)}. Other headers of a call stand beside {HEADER!r}"
        )
    times = {name: given[name] for name in ("perform_in", SENT) if given.get(name) is not None}
    return HeaderValues(
        read_score(given.get("score"), tz),
        priority=read_priority(given.get("priority")),
        **{name: read_time(name, value, tz) for name, value in times.items()},
    )


def take_header(options: dict[str, Any], tz: tzinfo | None) -> HeaderValues:
    """Take the header ``lowkiq`` out of the options of a call, and read it. Raises InvalidCall."""
    headers = options.get("headers") or {}
    if HEADER not in headers:
        return NO_VALUES
    rest = {name: value for name, value in options.pop("headers").items() if name != HEADER}
    if rest:
        options["headers"] = rest
    return read_header(headers, tz)


# Replaces kombu's producer: Celery publishes an ordered call here, in place of the broker.


class CallUnavailable(StoreUnavailable, OperationalError):
    """Redis cannot be reached. Also the error that any call of Celery's raises then."""


class CallRefused(StoreFull, OperationalError):
    """Redis is full: nothing was stored."""


def as_celery_error(error: StoreFull | StoreUnavailable) -> CallRefused | CallUnavailable:
    """Return the error that a call raises in place of the store's."""
    return CallRefused(*error.args) if isinstance(error, StoreFull) else CallUnavailable(*error.args)


def retry_intervals(retry: Any, policy: Mapping[str, Any] | None) -> Iterator[float]:
    """Intervals in s before the retries of a publish, by Celery's ``retry`` and ``retry_policy``."""
    if not retry:
        return iter(())
    given = {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.2,
        **(policy or {}),
    }
    start, most = given["interval_start"], given["interval_max"]
    intervals = fxrange(start, most + start, given["interval_step"], repeatlast=True)
    return islice(intervals, given["max_retries"])


def app_retry_intervals(app: Celery) -> Iterator[float]:
    """The retry intervals of a call without a policy of its own. Reads the settings at the first failure."""
    yield from retry_intervals(app.conf.task_publish_retry, app.conf.task_publish_retry_policy)


class StoreRouter:
    """Routes each call to its ordered queue: no ``task_routes``, and no broker queue is declared."""

    def __init__(self, name: str) -> None:
        self._queue = Queue(name, routing_key=name)

    def route(self, options: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
        """The options with the ordered queue, for receivers of publish signals."""
        return {**options, "queue": self._queue}


class StoreProducer:
    """A producer for ``Task.apply_async`` whose ``publish`` stores the call.

    Celery does everything else around a publish: signals, headers, the result.
    """

    auto_declare = False
    serializer = None

    def __init__(self, app: Celery, store: Callable[[MessagedCall], None]) -> None:
        self._app = app
        self._store = store
        #: True if Celery has published the message.
        self.published: bool = False
        self.connection: Any = context_of(app).connection

    @property
    def channel(self) -> Any:
        """The broker's channel, on which a result backend of the broker declares its queue."""
        return self.connection.default_channel

    def publish(self, body: Any, exchange: Any = None, headers: Any = None, **properties: Any) -> None:
        """Store the call. Celery's own events go to the broker."""
        if getattr(exchange, "name", exchange) == "celeryev":
            with self._app.producer_pool.acquire(block=True) as producer:
                producer.publish(body, exchange=exchange, headers=headers, **properties)
            return
        self.published = True
        self._store(read_call(body, headers, properties))

    def revive(self, channel: Any) -> None:
        """Do nothing: there is no channel to renew."""

    def __enter__(self) -> StoreProducer:
        return self

    def __exit__(self, *error: object) -> None:
        return None


# Overrides of Celery's ``send_task`` and ``apply_async``: tracers, which pass a call on, and outboxes.
#
# An outbox keeps a call and sends it later by name. It would lose the score, which no message carries.

T = TypeVar("T")

#: Asked for each call.
_is_defined_in = lru_cache(maxsize=64)(is_defined_in)

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


def override_of(app: Celery) -> str:
    """Name of a method of Celery's for sending calls that is overridden; "" for none."""
    if "send_task" in app.__dict__:
        return "app.send_task"
    if not _is_defined_in(type(app).send_task, base):
        return f"{type(app).__name__}.send_task"
    return "" if _is_defined_in(Task.apply_async, task) else "Task.apply_async"


def _is_mocked(app: Celery) -> bool:
    """Test for a mock of a test, which loses nothing."""
    return any(hasattr(sender, "assert_called_with") for sender in (app.send_task, Task.apply_async))


def send_whole(
    app: Celery, name: str, beyond: Mapping[str, Any], producer: StoreProducer, send: Callable[..., T]
) -> T:
    """Send a call of the task ``name``. ``beyond``: its arguments that no message carries.

    Raises InvalidCall when an override keeps the call from the producer, and what ``send`` raises.
    """
    override = override_of(app) if beyond else ""
    if override and _is_mocked(app):
        return send()
    try:
        result = send(**{PASSED_ON: OnlyPassedOn()} if override else {})
    except UNSTORABLE as error:
        if not override or producer.published or isinstance(error, LowkiqError):
            raise
        raise InvalidCall(_lost(name, beyond, override)) from error
    if beyond and not producer.published:
        raise InvalidCall(_lost(name, beyond, override or "something"))
    return result


def _lost(name: str, beyond: Mapping[str, Any], override: str) -> str:
    shown = ", ".join(f"{word}={saferepr(value, SHOWN)}" for word, value in beyond.items())
    return (
        f"{shown} of a call of {name} is invalid: expected only an id and a payload, because {override} "
        "keeps the call to send it by name, and would lose the rest. Leave it out, or exclude the task there"
    )


# Masks what ``lowkiq_redact`` names in the payloads and arguments of a task.
#
# With ``by=`` the arguments given by position have the names of the function's parameters.

#: Ends a text that is cut.
CUT = "..."


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


def announced(task: Any, entry: Entry, args: Any, kwargs: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Add to the options of a message what its receivers are to see. Returns what they may replace."""
    app = task._get_app()
    given = [name for name in SHOWN_ARGUMENTS if options.get(name) is not None]
    if not (signals.before_task_publish.receivers or signals.after_task_publish.receivers):
        return dict.fromkeys(given)
    eta = _eta_of(app, entry)
    if eta is not None:
        options["headers"] = {**(options.get("headers") or {}), "eta": eta}
    # Celery's own texts: a text that differs is a receiver's.
    made = {name: None if name in given else text for name, text in _default_texts(app, args, kwargs).items()}
    options |= {name: text for name, text in made.items() if text is not None}
    own_id = {"id": entry.id} if task.key is not None and not _finds_id(task.key, entry) else {}
    return {"eta": eta, **made, **own_id}


def as_published(task: Any, entry: Entry, made: Mapping[str, Any], call: MessagedCall) -> Entry:
    """The call as the receivers have left its message. Raises TypeError, InvalidCall."""
    headers, tz = call.headers, task._get_app().timezone
    values: dict[str, Any]
    if headers.get("task") != task.name:
        fix = "Call the other task from the receiver"
        raise InvalidCall(invalid("task", headers.get("task"), f"{task.name!r} in the headers", fix))
    if "id" in made:
        job_id, (payload,) = made["id"], call.args
    else:
        job_id, payload = task.call_form.read(call.args, call.kwargs, headers["id"], task.typing)
    values = {"id": read_id(job_id), "payload": payload, "priority": priority_of(call.properties)}
    if (eta := headers.get("eta")) != made.get("eta"):
        values |= {"perform_in": None if eta is None else read_time("eta", eta, tz), "delay": None}
    if (header := read_header(headers, tz)) is not NO_VALUES:
        values |= {name: value for name, value in vars(header).items() if value is not None}
    timed: Entry = task.call_form.timed(entry._replace(**values), time.time())
    return timed


def shown_arguments(task: Any, made: Mapping[str, Any], call: MessagedCall) -> dict[str, str]:
    """The arguments as a caller or a receiver wants events and logs to show them."""
    redactor = context_of(task._get_app()).settings.redactor
    found = {name: call.headers.get(name) for name in SHOWN_ARGUMENTS if name in made}
    return {
        name: redactor.text(text) for name, text in found.items() if text is not None and text != made[name]
    }


def shown_by_sender(task: Any, call: MessagedCall) -> dict[str, str]:
    """Arguments of a call by name as its sender wants them shown; none where positional ones are masked."""
    app = task._get_app()
    if covers_positions(task.call_form.parameters, context_of(app).settings.redactor):
        return {}
    made = {name: _comparable(text) for name, text in _default_texts(app, call.args, call.kwargs).items()}
    found = shown_arguments(task, dict.fromkeys(made), call)
    return {name: text for name, text in found.items() if _comparable(call.headers[name]) != made[name]}


def _finds_id(key: Any, entry: Entry) -> bool:
    """Test whether ``key=`` finds the id of a call: a bulk call may give another one."""
    try:
        return read_id(id_of(key, entry.payload)) == entry.id
    except InvalidCall:
        return False


def _eta_of(app: Any, entry: Entry) -> str | None:
    if entry.delay is not None:
        now: datetime = app.now()
        return (now + timedelta(seconds=entry.delay)).isoformat()
    return (
        None
        if entry.perform_in is None
        else datetime.fromtimestamp(entry.perform_in, app.timezone).isoformat()
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


# Fast path: decides when a call can be stored without building a Celery message first.


def has_publish_listeners(app: Celery) -> bool:
    """Test whether anything observes messages: a publish signal, an event, or an override of sending."""
    return bool(
        signals.before_task_publish.receivers
        or signals.after_task_publish.receivers
        or celery_setting(app, "task_send_sent_event")
        or override_of(app)
    )


def may_skip_message(task: Any, app: Celery, track_calls: bool) -> bool:
    """Test whether a call without options needs no message: nothing observes it, it needs no record, and no
    running task makes it.
    """
    return not (
        track_calls
        or task.expires is not None
        or task.job_ttl is not None
        or has_publish_listeners(app)
        or stores_error(task)
        or current_worker_task() is not None
    )


# Lets a call that is made in another thread see the running task that makes it.


def of_caller(function: Callable[[], T]) -> Callable[[], T]:
    """Return a function for another thread, in which the current task is that of this one."""
    task: Any = get_current_worker_task()
    return function if task is None else partial(_within, task, task.request, function)


def _within(task: Any, request: Any, function: Callable[[], T]) -> T:
    push_current_task(task)
    task.request_stack.push(request)
    try:
        return function()
    finally:
        task.request_stack.pop()
        pop_current_task()
