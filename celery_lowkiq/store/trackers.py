"""Store of trackers: counts by state, and the state and messages of each call by its task id."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence

from celery_lowkiq.rules.errors import InvalidCall, UnknownTracker
from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.tracking import (
    Counts,
    Message,
    NewCall,
    State,
    TrackedCall,
    TrackerUpdate,
    TrackerView,
)
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.call_records import STEP, by_tracker, parts, text_bytes, update_commands
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import TRACKERS_KEY, TrackerKeys, tracker_channel
from celery_lowkiq.store.listener import Listener
from celery_lowkiq.store.push import retried
from celery_lowkiq.store.records import (
    dump_cursor,
    id_bytes,
    load_cursor,
    load_place,
    member_scores,
    number_text,
    parse_id,
    parse_moment,
    parse_whole,
    reads_replies,
)
from celery_lowkiq.store.script import Value, load

#: Maximum number of trackers in the list; older ones can be read by id until they expire.
LISTED = 10_000
#: Replies of ``track_add.lua``.
UNKNOWN, CANCELLED = b"unknown", b"cancelled"

_STATES = tuple(State)
_ID = re.compile(r"[0-9a-f]{32}")
_FIELDS = ("name", "opened", "closed", "cancelled", *(state.value for state in State))
_CALL_RECORD = re.compile(rb"\d+ \d+ \d+ [01] (\d+\.\d+) (\S+) (\S+) (\d{1,9}) (\d{1,9}) ")
_MESSAGE = re.compile(rb"(\d+\.\d+) (%s) (\d{1,9}) " % b"|".join(state.value.encode() for state in State))


@reads_replies
class TrackerStore:
    """The trackers in Redis. Every method may raise StoreError, and can be repeated safely."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- a tracker

    def open(self, name: str, ttl: int) -> str:
        """Create a tracker, kept for ``ttl`` s after its last change. Return its id."""
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
        """Add calls before they are pushed. Return False when the tracker is cancelled: then they have ended.

        ``latest``: when the last call is due, in the form of ``latest_due``; ``pauses``: retry intervals (s)
        while Redis is unavailable. Raises UnknownTracker for a tracker that has expired.
        """
        keys = TrackerKeys(tracker)
        added = []
        for part in parts(calls):
            rest: list[Value] = []
            for call in part:
                queue, job_id = call.queue.encode(), id_bytes(call.job_id)
                lengths = b"%d %d " % (len(queue), len(job_id))
                rest += call.call, lengths + queue + job_id + call.payload
            added.append(load("track_add").call(keys, rest, channel=tracker_channel(tracker), latest=latest))

        replies = retried(iter(pauses), self._client.all, added)
        if UNKNOWN in replies:
            raise UnknownTracker(tracker)
        return CANCELLED not in replies

    def update(self, news: Iterable[TrackerUpdate]) -> set[str]:
        """Apply updates in one round trip. Return the cancelled trackers among those updated."""
        calls = update_commands(news)
        replies = self._client.all([call for _, call in calls])
        return {tracker for (tracker, _), reply in zip(calls, replies, strict=True) if reply}

    def progress(
        self, runs: Iterable[TrackerUpdate], text: str, current: float | None, total: float | None
    ) -> None:
        """Store the progress that runs report, in one round trip."""
        calls = []
        for tracker, group in by_tracker(runs).items():
            rest: list[Value] = [value for run in group for value in (run.call, run.epoch, run.claim)]
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
        """Close a tracker: no more calls will be added."""
        self._close(tracker, cancel=False)

    def cancel(self, tracker: str) -> int:
        """End some of the waiting calls as failed. Return their number; call again until it is 0."""
        return max(0, self._close(tracker, cancel=True))

    def _close(self, tracker: str, cancel: bool) -> int:
        call = load("track_close").call(
            TrackerKeys(tracker), channel=tracker_channel(tracker), cancel=int(cancel), limit=STEP
        )
        return int(self._client.call(call))

    # -- reads

    def view(self, tracker: str) -> TrackerView | None:
        """Return a snapshot of a tracker; None when it has expired. O(1)."""
        return self._views([tracker])[0]

    def recent(self, limit: int, after: str | None) -> Page[TrackerView]:
        """Return a page of trackers, the latest first. Expired ones are removed from the list."""
        score, member = (math.inf, b"") if after is None else load_cursor(after)
        bounds = (number_text(score), "-inf")
        command = ("ZREVRANGEBYSCORE", TRACKERS_KEY, *bounds, "WITHSCORES", "LIMIT", 0, limit + 1)
        (reply,) = self._client.commands([command])
        trackers = [(tracker, float(at)) for tracker, at in member_scores(reply) if tracker != member]
        page = trackers[:limit]
        views = self._views([tracker.decode("ascii", "replace") for tracker, _ in page])
        expired = [tracker for (tracker, _), view in zip(page, views, strict=True) if view is None]
        if expired:
            self._client.commands([("ZREM", TRACKERS_KEY, *expired)])
        following = dump_cursor(page[-1][1], page[-1][0]) if len(trackers) > limit else None
        return Page(tuple(view for view in views if view is not None), following)

    def calls(
        self, tracker: str, states: Iterable[State], limit: int, after: str | None
    ) -> Page[TrackedCall]:
        """Return a page of a tracker's calls in the order in which they were added. Raises InvalidCall."""
        call = load("track_page").call(
            TrackerKeys(tracker),
            [_STATES.index(state) for state in states],
            after=0 if after is None else load_place(after)[0],
            limit=limit,
        )
        reply = self._client.call(call)
        rows = [tuple(reply[i : i + 5]) for i in range(0, len(reply), 5)]
        views = tuple(_view(*values) for _, *values in rows)
        return Page(views, dump_cursor(rows[-1][0]) if len(rows) == limit else None)

    def listen(self, tracker: str) -> Listener:
        """Subscribe to the message that is sent when no call is pending any more."""
        return Listener(self._client, tracker_channel(tracker))

    def _views(self, trackers: Sequence[str]) -> list[TrackerView | None]:
        commands = [("HMGET", TrackerKeys(tracker)["tracker"], *_FIELDS) for tracker in trackers]
        return [
            _tracker(tracker, reply)
            for tracker, reply in zip(trackers, self._client.commands(commands), strict=True)
        ]


def read_id(value: str) -> str:
    """Return the id of a tracker. Raises InvalidCall."""
    if not _ID.fullmatch(value):
        raise InvalidCall(
            f"tracker={value[:100]!r} is invalid: expected 32 hexadecimal digits. Pass the id of track()"
        )
    return value


def latest_due(calls: Sequence[Call]) -> str:
    """Return when the last of the calls is due, in the form that ``track_add.lua`` reads; "" for now.

    It has the last time and the longest delay: which is later depends on Redis's clock.
    """
    times = [call.perform_in for call in calls if call.perform_in is not None]
    delays = [call.delay for call in calls if call.delay is not None]
    words = [number_text(max(times))] if times else []
    return " ".join(words + ([f"+{number_text(max(delays))}"] if delays else []))


def _number_or_dash(value: float | None) -> str:
    return "-" if value is None else number_text(value)


def _tracker(tracker: str, reply: list[bytes | None]) -> TrackerView | None:
    values = dict(zip(_FIELDS, reply, strict=True))
    name, opened_at = values["name"], parse_moment(values["opened"])
    if name is None or opened_at is None:
        return None
    return TrackerView(
        id=tracker,
        name=name.decode("utf-8", "replace"),
        opened_at=opened_at,
        closed=values["closed"] == b"1",
        cancelled=values["cancelled"] == b"1",
        counts=Counts.of({state.value: parse_whole(values[state.value] or b"") for state in State}),
    )


def _view(state: int, call: bytes, record: bytes, messages: bytes) -> TrackedCall:
    match = _CALL_RECORD.match(record)
    updated, current, total, queue, job_id = match.groups() if match else (b"0", b"-", b"-", b"0", b"0")
    start = match.end() if match else len(record)
    middle, stop = start + int(queue), start + int(queue) + int(job_id)
    return TrackedCall(
        task_id=call.decode("utf-8", "replace"),
        queue=record[start:middle].decode("utf-8", "replace"),
        id=parse_id(record[middle:stop]),
        payload=record[stop:],
        state=_STATES[state],
        updated_at=float(updated),
        current=parse_moment(current),
        total=parse_moment(total),
        messages=tuple(_messages(messages)),
    )


def _messages(record: bytes) -> Iterator[Message]:
    position = record.find(b" ") + 1
    while match := _MESSAGE.match(record, position):
        position = match.end() + int(match.group(3))
        text = record[match.end() : position].decode("utf-8", "replace")
        yield Message(float(match.group(1)), State(match.group(2).decode()), text)
