"""Tracker updates as script calls, which are sent with a settle or alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.scripts.keys import TrackerKeys, tracker_channel
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

T = TypeVar("T")

#: Maximum number of updates in one script.
STEP = 500
#: Maximum bytes of a stored message.
MAX_TEXT = 1024


def update_commands(news: Iterable[TrackerUpdate]) -> list[tuple[str, ScriptCall]]:
    """Return script calls that update trackers, each with its tracker."""
    calls = []
    for tracker, found in by_tracker(news).items():
        for part in parts(found):
            rest: list[Value] = [value for each in part for value in _news_values(each)]
            script = load("track_update").call(TrackerKeys(tracker), rest, channel=tracker_channel(tracker))
            calls.append((tracker, script))
    return calls


def by_tracker(news: Iterable[TrackerUpdate]) -> dict[str, list[TrackerUpdate]]:
    """Group updates by tracker, in their order."""
    found: dict[str, list[TrackerUpdate]] = {}
    for each in news:
        found.setdefault(each.tracker, []).append(each)
    return found


def parts(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of at most STEP values."""
    left = iter(values)
    while part := list(islice(left, STEP)):
        yield part


def text_bytes(text: str) -> bytes:
    """Encode a message, cut to MAX_TEXT bytes."""
    data = text.encode("utf-8", "backslashreplace")
    return data[:MAX_TEXT].decode("utf-8", "ignore").encode()


def _news_values(news: TrackerUpdate) -> tuple[Value, ...]:
    return (
        news.call,
        news.shard,
        news.epoch,
        news.claim,
        news.state.value,
        news.message_state.value,
        text_bytes(news.text),
    )
