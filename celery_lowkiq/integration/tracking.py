"""Trackers, as callers see them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from celery import Celery, current_app

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import InvalidCall, SubscriptionLost, UndecodablePayload, UnknownTracker
from celery_lowkiq.rules.tracking import Counts, State, TrackedCall, TrackerView
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.listings import check_limits
from celery_lowkiq.store.trackers import TrackerStore, read_id

LONGEST_NAME = 200
#: Seconds for which a tracker is kept after its last call has ended.
KEPT_SECONDS = 7 * 86400
#: Seconds after a lost subscription before the next one: each new master may be lost at once, too.
RESUBSCRIBE = 0.1


class Tracker:
    """A group of calls. The end of its ``with`` block closes it: no more calls will be added.

    Any process may watch it by its id. Every method may raise StoreError, and UnknownTracker when it has
    expired.
    """

    def __init__(
        self, app: Celery, tracker_id: str, name: str, mine: bool = False, raw: bool = False
    ) -> None:
        """``mine``: this process adds the calls, so ``wait`` need not wait for the closing.

        ``raw``: payloads stay the stored bytes.
        """
        self.id = tracker_id
        self.name = name
        self._app = app
        self._mine = mine
        self._raw = raw

    @classmethod
    def get(cls, app: Celery, tracker_id: str, raw: bool = False) -> Tracker:
        """The tracker with this id. Raises UnknownTracker, and InvalidCall for an invalid id."""
        view = context_of(app).tracker_store.view(read_id(tracker_id))
        if view is None:
            raise UnknownTracker(tracker_id)
        return cls(app, tracker_id, view.name, raw=raw)

    def __repr__(self) -> str:
        return f"<Tracker {self.id} {self.name!r}>"

    def __json__(self) -> str:
        """Its id: a tracker may be an option of a serialized signature."""
        return self.id

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _tracker_store(self) -> TrackerStore:
        return context_of(self._app).tracker_store

    # -- reads

    def view(self) -> TrackerView:
        """A snapshot of the tracker, at constant cost."""
        found = self._tracker_store.view(self.id)
        if found is None:
            raise UnknownTracker(self.id)
        return found

    def counts(self) -> Counts:
        """How many calls are in each state."""
        return self.view().counts

    def jobs(
        self,
        state: State | str | Iterable[State | str] | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[TrackedCall]:
        """A page of the calls in one state, several, or any, in the order in which they were added.

        Raises InvalidCall for a state that does not exist.
        """
        check_limits(limit=limit)
        page = self._tracker_store.calls(self.id, read_states(state), limit, after)
        if self._raw:
            return page
        return page.map(self._decoded)

    def _decoded(self, call: TrackedCall) -> TrackedCall:
        try:
            return replace(call, payload=context_of(self._app).gate(call.queue).load_unsigned(call.payload))
        except UndecodablePayload:
            return replace(call, payload=call.payload.decode("utf-8", "backslashreplace"))

    def wait(self, timeout: float | None = None) -> bool:
        """Block until all calls have ended, at most ``timeout`` s. Returns whether they have.

        A tracker that was got by its id must be closed, too.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = context_of(self._app).settings.poll_interval
        while True:
            # Another master carries on what was listened to.
            with contextlib.suppress(SubscriptionLost), self._tracker_store.listen(self.id) as listener:
                while not self._has_ended():
                    left = _left(deadline, poll)
                    if left <= 0:
                        return False
                    listener.wait(left)
                return True
            threading.Event().wait(_left(deadline, RESUBSCRIBE))

    def _has_ended(self) -> bool:
        view = self.view()
        return view.done or (self._mine and not view.counts.pending)

    # -- changes

    def close(self) -> None:
        """End the tracker: no more calls will be added."""
        self._tracker_store.close(self.id)

    def cancel(self, progress: Callable[[int], Any] | None = None) -> int:
        """End all waiting calls of the tracker as failed; calls that run go on. Returns how many have ended.

        ``progress`` gets their number after each part. Their results become REVOKED when they are due.
        """
        ended = 0
        while some := self._tracker_store.cancel(self.id):
            ended += some
            if progress is not None:
                progress(ended)
        return ended


def _left(deadline: float | None, most: float) -> float:
    return most if deadline is None else min(most, deadline - time.monotonic())


def track(name: str, app: Celery | None = None) -> Tracker:
    """Open a tracker: ``with track("import") as tracker: task.perform_async(jobs, tracker=tracker)``.

    ``app`` is by default the current one. Raises InvalidCall, StoreError.
    """
    proxy: Any = current_app
    app = app or proxy._get_current_object()
    assert app is not None
    _check_eager(app)
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidCall(f"name={name!r:.100} is invalid: expected a text of 1 to {LONGEST_NAME} characters")
    context = context_of(app)
    return Tracker(app, context.tracker_store.open(name, KEPT_SECONDS), name, mine=True)


def trackers(app: Celery, limit: int = 100, after: str | None = None) -> Page[TrackerView]:
    """A page of the trackers in the app's Redis, the latest first. Raises InvalidCall, StoreError."""
    check_limits(limit=limit)
    return context_of(app).tracker_store.recent(limit, after)


def tracker_of(given: Tracker | str | None, app: Celery) -> str:
    """Id of the ``tracker=`` of a call; "" for None. Raises InvalidCall."""
    if given is None:
        return ""
    _check_eager(app)
    if isinstance(given, Tracker):
        return given.id
    if not isinstance(given, str):
        raise InvalidCall(f"tracker={given!r:.100} is invalid: expected what track() returns, or its id")
    return read_id(given)


def _check_eager(app: Celery) -> None:
    if app.conf.task_always_eager:
        raise InvalidCall(
            "a tracker needs the store, and task_always_eager=True stores nothing: in tests use the fixture "
            "`lowkiq`"
        )


def read_states(value: State | str | Iterable[State | str] | None) -> tuple[State, ...]:
    """States by their names; all for None. Raises InvalidCall."""
    if value is None:
        return tuple(State)
    try:
        return tuple(map(State, [value] if isinstance(value, str) else value))
    except (ValueError, TypeError):
        names = ", ".join(state.value for state in State)
        raise InvalidCall(f"state={value!r:.100} is invalid: expected one or more of {names}") from None
