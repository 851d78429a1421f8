"""Misspelt names of options. Celery would keep them as attributes of a task, without effect."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall

#: How similar (0 to 1) a name is to the option that it is taken for.
SIMILAR = 0.8
#: What Lowkiq calls them.
LOWKIQS = {"shards_count": "shards", "max_retry_count": "max_retries"}
#: Our options of a call.
OF_A_CALL = ("score", "priority", "countdown", "eta", "tracker")
#: Their short forms.
SHORT = {"prio": "priority"}
#: A name at a call must be more similar: callers may have options of their own, as ``store=`` or ``etag=``.
SIMILAR_AT_A_CALL = 0.86


def check_option_names(
    given: Iterable[str], known: Collection[str], ours: Collection[str], celerys: Collection[str]
) -> None:
    """Raises ConfigurationError for the first name that is not ``known`` and looks like an option, one of
    ``ours`` or of Celery's. Any other name is an attribute of the user's own.
    """
    for name in given:
        if name in known or name in celerys or name in ours:
            continue
        meant = LOWKIQS.get(name) or _similar(name, ours) or _similar(name, celerys)
        if meant is not None:
            raise ConfigurationError(
                f"{name}= is invalid: expected the name of an option. Did you mean {meant}=? An attribute of "
                "your own needs a name that is less similar"
            )


def check_call_names(task: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first option of a call that looks like a misspelt one of ours.

    Celery puts stamps among the options; their names are free.
    """
    for name, value in options.items():
        meant = _meant_at_a_call(name)
        if meant is not None and value is not None and name not in (options.get("stamped_headers") or ()):
            raise InvalidCall(
                f"{name}= is invalid: expected the name of an option of a call of {task}. "
                f"Did you mean {meant}=?"
            )


@lru_cache(maxsize=1024)
def _meant_at_a_call(name: str) -> str | None:
    if name in OF_A_CALL:
        return None
    return SHORT.get(name.lower()) or _similar(name.lower(), OF_A_CALL, SIMILAR_AT_A_CALL)


def _similar(name: str, options: Collection[str], cutoff: float = SIMILAR) -> str | None:
    return next(iter(difflib.get_close_matches(name, options, n=1, cutoff=cutoff)), None)


@contextlib.contextmanager
def naming(task: str) -> Iterator[None]:
    """Put the name of the task in front of a ConfigurationError, for where no traceback is shown."""
    try:
        yield
    except ConfigurationError as error:
        if str(error).startswith(f"{task}: "):
            raise
        raise ConfigurationError(f"{task}: {error}") from error


def data_names(declared: Mapping[str, Any]) -> list[str]:
    """Names in a class body that may be options: no methods, properties or private names."""
    return [
        name
        for name, value in declared.items()
        if not (name.startswith("_") or callable(value) or hasattr(value, "__get__"))
    ]
