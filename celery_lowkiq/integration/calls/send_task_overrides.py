"""What stands in the place of Celery's ``send_task``: it passes calls on, or keeps them, as an outbox does.

What is kept is sent later by name. A message has no score, so then a call may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pickle import PicklingError
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from celery import Celery, Task
from celery.app import base, task
from celery.utils.saferepr import saferepr

from celery_lowkiq.rules.errors import InvalidCall, LowkiqError

from .producer import StoreProducer
from .validation import SHOWN

T = TypeVar("T")

#: Option under which a call takes along what no message has.
PASSED_ON = "lowkiq"
#: What serializers raise for an object that they do not know.
UNSTORABLE = (TypeError, ValueError, PicklingError)


class OnlyPassedOn:
    """An option that can be passed on and not stored: a stand-in that stores calls fails before it does."""

    def __str__(self) -> str:
        raise TypeError(f"{self!r} cannot be stored")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be stored")

    def __repr__(self) -> str:
        return "<what a call of an ordered task says beyond its message>"


def stand_in(app: Celery) -> str:
    """Name of what stands in the place of a method of Celery's that sends a call; "" for nothing."""
    if "send_task" in app.__dict__:
        return "app.send_task"
    if not _is_celerys(type(app).send_task, base):
        return f"{type(app).__name__}.send_task"
    return "" if _is_celerys(Task.apply_async, task) else "Task.apply_async"


def _is_celerys(function: Any, module: Any) -> bool:
    """Whether neither a subclass nor what instruments the process has put something in its place."""
    return type(function) is FunctionType and function.__code__.co_filename == module.__file__


def sent_whole(
    app: Celery, name: str, said: Mapping[str, Any], producer: StoreProducer, send: Callable[..., T]
) -> T:
    """Send a call of the task of that name; what it ``said`` is in no message, and must reach the producer.

    Raises InvalidCall when something stands in its way, and what ``send`` raises.
    """
    between = stand_in(app) if said else ""
    try:
        result = send(**{PASSED_ON: OnlyPassedOn()} if between else {})
    except UNSTORABLE as error:
        if not between or producer.published or isinstance(error, LowkiqError):
            raise
        raise InvalidCall(_lost(name, said, between)) from error
    if said and not producer.published:
        raise InvalidCall(_lost(name, said, between or "something"))
    return result


def _lost(name: str, said: Mapping[str, Any], between: str) -> str:
    shown = ", ".join(f"{word}={saferepr(value, SHOWN)}" for word, value in said.items())
    return (
        f"{shown} of a call of {name} is invalid: expected only an id and a payload, since {between} keeps "
        "the call to send it by name, and would lose the rest. Leave it out, or exclude the task there"
    )
