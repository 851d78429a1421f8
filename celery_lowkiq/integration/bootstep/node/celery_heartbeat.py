"""The heartbeat that Celery sends: it counts the runs of the node process as active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _Eventer:
    """``Heart.eventer``."""

    def __init__(self, celerys: Any, running: Callable[[], int]) -> None:
        self._celerys = celerys
        self._running = running

    @property
    def enabled(self) -> bool:
        return bool(self._celerys.enabled)

    def send(self, type: str, *, active: int, **fields: Any) -> Any:  # noqa: A002 - as Celery's
        return self._celerys.send(type, active=active + self._running(), **fields)


def count_in_heartbeats(heart: Any, running: Callable[[], int]) -> None:
    """Add ``running()`` to the active tasks that ``heart`` tells; None with --without-heartbeat."""
    if heart is not None and not isinstance(heart.eventer, _Eventer):
        heart.eventer = _Eventer(heart.eventer, running)
