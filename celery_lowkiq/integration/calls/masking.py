"""Masks what ``lowkiq_redact`` names in the payloads and arguments of a task.

With ``by=`` the arguments given by position have the names of the function's parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from celery_lowkiq.rules.json_beginning import load_beginning
from celery_lowkiq.rules.redaction import MASK, Redactor

from .call_form import CallForm

#: Ends a text that is cut.
CUT = "..."


def masked_arguments(form: CallForm, args: Sequence[Any], redactor: Redactor) -> list[Any]:
    """Positional arguments with masks, also within them."""
    return [MASK if redactor.covers(name) else redactor.value(value) for name, value in _named(form, args)]


@lru_cache(maxsize=1024)
def covers_positions(parameters: tuple[str, ...], redactor: Redactor) -> bool:
    """Whether arguments by position have names of secrets."""
    return any(map(redactor.covers, parameters))


def masked_payload(form: CallForm | None, payload: Any, redactor: Redactor) -> Any:
    """A payload with masks. It may have any shape, since it may be anybody's."""
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
    """The beginning of a JSON payload with masks; None: as it is, since no secret can be in it."""
    if not may_have_secrets(form, text, redactor):
        return None
    try:
        return json.dumps(masked_payload(form, load_beginning(text), redactor), ensure_ascii=False)
    except (ValueError, RecursionError):
        return MASK


def may_have_secrets(form: CallForm | None, text: str, redactor: Redactor) -> bool:
    """Whether a secret may be in JSON: in a position, or by a name, which an escape could spell."""
    positions = form.parameters if form else ()
    return covers_positions(positions, redactor) or "\\u" in text or redactor.may_have(text)


def payload_secrets(form: CallForm, payloads: Iterable[Any], redactor: Redactor) -> set[str]:
    """The values that are masked in payloads, as a text may quote them."""
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
