"""Masks what ``lowkiq_redact`` names in the payloads and arguments of a task.

With ``by=`` the arguments given by position have the names of the function's parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from celery_lowkiq.rules.redaction import MASK, Redactor

from .call_form import CallForm


def masked_arguments(form: CallForm, args: Sequence[Any], redactor: Redactor) -> list[Any]:
    """Positional arguments with masks, also within them."""
    covered = covered_positions(form.parameters, redactor)
    return [MASK if at in covered else redactor.value(value) for at, value in enumerate(args)]


@lru_cache(maxsize=1024)
def covered_positions(parameters: tuple[str, ...], redactor: Redactor) -> frozenset[int]:
    """Positions of the arguments whose names are those of secrets."""
    return frozenset(at for at, name in enumerate(parameters) if redactor.covers(name))


def masked_payload(form: CallForm, payload: Any, redactor: Redactor) -> Any:
    """A payload with masks. It may have any shape, since it may be anybody's."""
    masked = redactor.value(payload)
    if args := _positional(form, payload):
        masked["args"] = masked_arguments(form, args, redactor)
    return masked


def payload_secrets(form: CallForm, payloads: Iterable[Any], redactor: Redactor) -> set[str]:
    """The values that are masked in payloads, as a text may quote them."""
    found: set[str] = set()
    for payload in payloads if redactor else ():
        found |= redactor.secrets(payload)
        if args := _positional(form, payload):
            found |= redactor.secrets(dict(zip(form.parameters, args, strict=False)))
    return found


def _positional(form: CallForm, payload: Any) -> Sequence[Any]:
    """The arguments of a payload that have names by their positions."""
    args = payload.get("args") if form.parameters and isinstance(payload, Mapping) else ()
    return args if isinstance(args, (list, tuple)) else ()
