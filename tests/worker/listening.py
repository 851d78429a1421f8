"""Celery's events, as Flower receives them."""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery
from celery.events import EventReceiver


class Listener:
    """Collects events whose types begin with one of ``kinds``."""

    def __init__(self, app: Celery, *kinds: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._kinds = kinds or ("task-", "lowkiq-")
        self._app = app
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self.ready = threading.Event()

    def __enter__(self) -> Listener:
        self._thread.start()
        self.ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._thread.join(10)

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = EventReceiver(connection, handlers={"*": self._heard}, app=self._app)
            with receiver.consumer_context() as (own, _, _):
                self.ready.set()
                while not self.stop.is_set():
                    try:
                        own.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    def _heard(self, event: dict[str, Any]) -> None:
        if event["type"].startswith(self._kinds):
            self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a type, in the order in which they came."""
        return [event for event in list(self.events) if event["type"] == kind]
