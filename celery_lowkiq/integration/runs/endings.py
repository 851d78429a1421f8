"""How a call of a merged job ends: played through Celery's tracer under the call's own id.

So its result, links, chord part, signals and events are Celery's, whatever its version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Ending:
    """``give()`` returns a call's value, or raises what Celery is to see. Not final: the call runs again."""

    final: bool
    give: Callable[[], Any]
    #: Whether its job is done: it may run again to tell the call.
    success: bool = False


def giving(value: Any) -> Callable[[], Any]:
    """A call that succeeds."""
    return lambda: value


class raising:  # noqa: N801 - read as a verb
    """A call that fails, is retried, or ignored. Each raise of an exception would lengthen its traceback."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self._traceback = error.__traceback__

    def __call__(self) -> NoReturn:
        raise self.error.with_traceback(self._traceback)
