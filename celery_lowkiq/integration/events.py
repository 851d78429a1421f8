"""Events of runs, sent by this process or by another one in its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from celery_lowkiq.integration.safe_logging import safe_logger


def send_event(dispatcher: Any, kind: str, fields: dict[str, Any]) -> None:
    """Send an event, and log an error in it. ``dispatcher``: Celery's; None without a broker connection."""
    if dispatcher is not None:
        try:
            dispatcher.send(kind, **fields)
        except Exception:
            safe_logger.exception("could not send the event %s", kind)


def groups_of(dispatcher: Any) -> tuple[str, ...] | None:
    """Return the groups of events that are sent, none for all; None: no events are sent."""
    return tuple(dispatcher.groups or ()) if dispatcher is not None and dispatcher.enabled else None


class EventRelay:
    """Stands in for Celery's event dispatcher in a process without a broker: another one sends the events."""

    enabled: bool
    groups: tuple[str, ...]

    def __init__(self, relay: Callable[[str, dict[str, Any]], None]) -> None:
        """``relay`` gets the kind of an event, and its fields. No event is sent before :meth:`switch`."""
        self._relay = relay
        self.switch(None)

    def switch(self, groups: tuple[str, ...] | None) -> None:
        """Send events of these groups from now on; as :func:`groups_of` returns them."""
        self.enabled, self.groups = groups is not None, groups or ()

    def send(self, type: str, **fields: Any) -> None:  # noqa: A002 - as Celery's
        """Have the other process send an event."""
        if self.enabled and (not self.groups or type.partition("-")[0] in self.groups):
            fields.setdefault("timestamp", time.time())
            self._relay(type, fields)


class RemoteConsumer:
    """Stands in for Celery's consumer in a process without a broker: the sender of ``task_received``."""

    def __init__(
        self, app: Celery, hostname: str, relay: Callable[[str, dict[str, Any]], None], **attributes: Any
    ) -> None:
        """``relay``: of :class:`EventRelay`."""
        self.app: Celery = app
        self.hostname: str = hostname
        self.event_dispatcher: EventRelay = EventRelay(relay)
        vars(self).update(attributes)
