"""Overrides of Celery's ``send_task`` and ``apply_async``: tracers, which pass a call on, and outboxes.

An outbox keeps a call and sends it later by name. It would lose the score, which no message carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pickle import PicklingError
from typing import Any, NoReturn, TypeVar

from celery import Celery, Task
from celery.app import base, task
from celery.utils.saferepr import saferepr

from celery_lowkiq.rules.errors import InvalidCall, LowkiqError
from celery_lowkiq.rules.functions import is_defined_in

from .producer import StoreProducer
from .validation import SHOWN

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
    """Whether a test keeps calls from being sent: a mock loses nothing."""
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
        f"{shown} of a call of {name} is invalid: expected only an id and a payload, since {override} keeps "
        "the call to send it by name, and would lose the rest. Leave it out, or exclude the task there"
    )
