"""The message of a call, as receivers of ``before_task_publish`` get it and leave it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery import signals
from celery.app.defaults import DEFAULTS
from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.app.celery_settings import celery_setting
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.validators import invalid

from .masking import covers_positions
from .message import NO_VALUES, MessagedCall, read_header
from .validation import Entry, id_of, priority_of, read_id, read_time

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
    # As Celery would make them: what differs from them is a receiver's.
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
    """The same of a call by name; none where its positional arguments are masked."""
    app = task._get_app()
    if covers_positions(task.call_form.parameters, context_of(app).settings.redactor):
        return {}
    made = {name: _comparable(text) for name, text in _default_texts(app, call.args, call.kwargs).items()}
    found = shown_arguments(task, dict.fromkeys(made), call)
    return {name: text for name, text in found.items() if _comparable(call.headers[name]) != made[name]}


def _finds_id(key: Any, entry: Entry) -> bool:
    """Whether ``key=`` finds the id of a call: a bulk call may give another one."""
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
