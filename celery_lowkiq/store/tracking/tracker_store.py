"""Trackers of groups of calls: counts, the state of each call, its messages. Keyed by the call's task id."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall, UnknownTracker
from celery_lowkiq.rules.models import NewJob
from celery_lowkiq.rules.tracking import CallView, Counts, Message, NewCall, News, State, TrackerView
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.jobs.push import patiently
from celery_lowkiq.store.jobs.tracker_updates import STEP, by_tracker, parts, tell_calls, text_bytes
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.cursors import dump_position, load_place, load_position
from celery_lowkiq.store.scripts.keys import TRACKERS_KEY, TrackerKeys, tracker_channel
from celery_lowkiq.store.scripts.listener import Listener
from celery_lowkiq.store.scripts.records import id_bytes, number_text, parse_id
from celery_lowkiq.store.scripts.script import Value, load

#: So many trackers are listed; older ones are there until they expire, for who knows their ids.
LISTED = 10_000
#: Answers of ``track_add.lua``.
UNKNOWN, CANCELLED = b"unknown", b"cancelled"

_STATES = tuple(State)
_ID = re.compile(r"[0-9a-f]{32}")
_FIELDS = ("name", "opened", "closed", "cancelled", *(state.value for state in State))
_KNOWN = re.compile(rb"\d+ \d+ [01] (\d+\.\d+) (\S+) (\S+) (\d+) (\d+) ")
_SAID = re.compile(rb"(\d+\.\d+) ([a-z]+) (\d+) ")


class Tracks:
    """Every method may raise StoreError. All of them may be repeated."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- a tracker

    def open(self, name: str, ttl: int) -> str:
        """The id of a new tracker, which is kept for ``ttl`` s after its last change."""
        tracker = uuid.uuid4().hex
        opened = self._client.call(
            load("track_open").call(TrackerKeys(tracker), name=text_bytes(name), ttl=ttl)
        )
        self._client.commands(
            [
                ("ZADD", TRACKERS_KEY, opened, tracker),
                ("ZREMRANGEBYRANK", TRACKERS_KEY, 0, -LISTED - 1),
            ]
        )
        return tracker

    def add(
        self, tracker: str, calls: Iterable[NewCall], latest: str = "", pauses: Iterable[float] = ()
    ) -> bool:
        """Make calls known, before they are pushed; ``latest``: when the last of them is due, as ``due_last``
        says it. While Redis is away it is asked again after each of the ``pauses`` (s).

        Returns whether they may run: calls of a tracker that was cancelled are known, and have ended. Raises
        UnknownTracker for one that has expired.
        """
        keys = TrackerKeys(tracker)
        steps = []
        for part in parts(calls):
            rest: list[Value] = [value for call in part for value in (call.call, _what(call))]
            steps.append(load("track_add").call(keys, rest, channel=tracker_channel(tracker), latest=latest))
        replies = patiently(iter(pauses), lambda: self._client.all(steps))
        if UNKNOWN in replies:
            raise UnknownTracker(tracker)
        return CANCELLED not in replies

    def tell(self, news: Iterable[News]) -> set[str]:
        """Tell trackers what has happened to their calls, in one round trip. Returns the cancelled ones."""
        calls = tell_calls(news)
        replies = self._client.all([call for _, call in calls])
        return {tracker for (tracker, _), reply in zip(calls, replies, strict=True) if reply}

    def progress(self, runs: Iterable[News], text: str, current: float | None, total: float | None) -> None:
        """Keep what runs that began say of their progress, in one round trip."""
        calls = []
        for tracker, found in by_tracker(runs).items():
            rest: list[Value] = [value for run in found for value in (run.call, run.epoch, run.claim)]
            calls.append(
                load("track_progress").call(
                    TrackerKeys(tracker),
                    rest,
                    current=_number_or_dash(current),
                    total=_number_or_dash(total),
                    text=text_bytes(text),
                )
            )
        self._client.all(calls)

    def close(self, tracker: str) -> None:
        """No more calls will be added by who opened it."""
        self._close(tracker, cancel=False)

    def cancel(self, tracker: str) -> int:
        """End some of the waiting calls as failed. Returns how many; call again until that is 0."""
        return max(0, self._close(tracker, cancel=True))

    def _close(self, tracker: str, cancel: bool) -> int:
        call = load("track_close").call(
            TrackerKeys(tracker), channel=tracker_channel(tracker), cancel=int(cancel), limit=STEP
        )
        return int(self._client.call(call))

    # -- reads

    def view(self, tracker: str) -> TrackerView | None:
        """A tracker as it stands; None for one that has expired. O(1)."""
        return self._views([tracker])[0]

    def recent(self, limit: int, after: str | None) -> Page[TrackerView]:
        """A page of trackers, the latest first. Those that have expired leave the list."""
        score, member = ("+inf", b"") if after is None else load_position(after)
        bound = score if score == "+inf" else number_text(float(score))
        command = ("ZREVRANGEBYSCORE", TRACKERS_KEY, bound, "-inf", "WITHSCORES", "LIMIT", 0, limit + 1)
        (reply,) = self._client.commands([command])
        found = [(tracker, float(at)) for tracker, at in _scored(reply) if tracker != member]
        page = found[:limit]
        views = self._views([tracker.decode("ascii", "replace") for tracker, _ in page])
        gone = [tracker for (tracker, _), view in zip(page, views, strict=True) if view is None]
        if gone:
            self._client.commands([("ZREM", TRACKERS_KEY, *gone)])
        following = dump_position(page[-1][1], page[-1][0]) if len(found) > limit else None
        return Page(tuple(view for view in views if view is not None), following)

    def calls(self, tracker: str, states: Iterable[State], limit: int, after: str | None) -> Page[CallView]:
        """A page of a tracker's calls in the order in which they were added. Raises InvalidCall."""
        call = load("track_page").call(
            TrackerKeys(tracker),
            [_STATES.index(state) for state in states],
            after=0 if after is None else load_place(after),
            limit=limit,
        )
        reply = self._client.call(call)
        found = [tuple(reply[i : i + 5]) for i in range(0, len(reply), 5)]
        views = tuple(_view(*values) for _, *values in found)
        return Page(views, str(found[-1][0]) if len(found) == limit else None)

    def listen(self, tracker: str) -> Listener:
        """Hear when nothing of the tracker is pending any more."""
        return Listener(self._client.redis, tracker_channel(tracker))

    def _views(self, trackers: Sequence[str]) -> list[TrackerView | None]:
        commands = [("HMGET", TrackerKeys(tracker)["tracker"], *_FIELDS) for tracker in trackers]
        return [
            _tracker(tracker, reply)
            for tracker, reply in zip(trackers, self._client.commands(commands), strict=True)
        ]


def read_id(value: str) -> str:
    """The id of a tracker. Raises InvalidCall."""
    if not _ID.fullmatch(value):
        raise InvalidCall(f"{value[:100]!r} is no id of a tracker: 32 hexadecimal digits are allowed")
    return value


def due_last(jobs: Iterable[NewJob]) -> str:
    """When the last of the jobs is due, as ``track_add.lua`` reads it; "" for now.

    Which is later, the last time or the longest delay, only Redis's clock can say.
    """
    jobs = tuple(jobs)
    times = [job.perform_in for job in jobs if job.perform_in is not None]
    delays = [job.delay for job in jobs if job.delay is not None]
    words = [number_text(max(times))] if times else []
    return " ".join(words + ([f"+{number_text(max(delays))}"] if delays else []))


def _number_or_dash(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _what(call: NewCall) -> bytes:
    queue, job_id = call.queue.encode(), id_bytes(call.job_id)
    return b"%d %d " % (len(queue), len(job_id)) + queue + job_id + call.payload


def _tracker(tracker: str, reply: list[bytes | None]) -> TrackerView | None:
    values = dict(zip(_FIELDS, reply, strict=True))
    name, opened = values["name"], values["opened"]
    if name is None or opened is None:
        return None
    return TrackerView(
        id=tracker,
        name=name.decode("utf-8", "replace"),
        opened_at=float(opened),
        closed=values["closed"] == b"1",
        cancelled=values["cancelled"] == b"1",
        counts=Counts.of(values),
    )


def _view(state: int, call: bytes, known: bytes, said: bytes) -> CallView:
    found = _KNOWN.match(known)
    updated, current, total, queue, job_id = found.groups() if found else (b"0", b"-", b"-", b"0", b"0")
    start = found.end() if found else len(known)
    middle, stop = start + int(queue), start + int(queue) + int(job_id)
    return CallView(
        call=call.decode("utf-8", "replace"),
        queue=known[start:middle].decode("utf-8", "replace"),
        job_id=parse_id(known[middle:stop]),
        payload=known[stop:],
        state=_STATES[state],
        updated_at=float(updated),
        current=_number(current),
        total=_number(total),
        messages=tuple(_messages(said)),
    )


def _messages(said: bytes) -> Iterator[Message]:
    at = said.find(b" ") + 1
    while found := _SAID.match(said, at):
        at = found.end() + int(found.group(3))
        text = said[found.end() : at].decode("utf-8", "replace")
        yield Message(float(found.group(1)), State(found.group(2).decode()), text)


def _number(text: bytes) -> float | None:
    return None if text == b"-" else float(text)


def _scored(reply: Any) -> list[tuple[bytes, Any]]:
    """redis-py answers WITHSCORES with pairs, or flat, by how the command is sent."""
    if reply and isinstance(reply[0], (tuple, list)):
        return [(member, score) for member, score in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))
