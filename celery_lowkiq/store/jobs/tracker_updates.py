"""News of tracked calls as commands; they go with a settle, or by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from celery_lowkiq.rules.tracking import TrackerUpdate
from celery_lowkiq.store.scripts.keys import TrackerKeys, tracker_channel
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

T = TypeVar("T")

#: What one script takes at most.
STEP = 500
#: What is kept of a message, in bytes.
MAX_TEXT = 1024


def update_commands(news: Iterable[TrackerUpdate]) -> list[tuple[str, ScriptCall]]:
    """The commands that tell trackers of news, with the tracker of each."""
    calls = []
    for tracker, found in by_tracker(news).items():
        for part in parts(found):
            rest: list[Value] = [value for each in part for value in _news_values(each)]
            script = load("track_update").call(TrackerKeys(tracker), rest, channel=tracker_channel(tracker))
            calls.append((tracker, script))
    return calls


def by_tracker(news: Iterable[TrackerUpdate]) -> dict[str, list[TrackerUpdate]]:
    """In their order."""
    found: dict[str, list[TrackerUpdate]] = {}
    for each in news:
        found.setdefault(each.tracker, []).append(each)
    return found


def parts(values: Iterable[T]) -> Iterator[list[T]]:
    """As many at once as one script takes."""
    left = iter(values)
    while part := list(islice(left, STEP)):
        yield part


def text_bytes(text: str) -> bytes:
    """A message as it is kept: cut to MAX_TEXT bytes."""
    data = text.encode("utf-8", "backslashreplace")
    return data[:MAX_TEXT].decode("utf-8", "ignore").encode()


def _news_values(news: TrackerUpdate) -> tuple[Value, ...]:
    return (
        news.call,
        news.epoch,
        news.claim,
        news.state.value,
        news.message_state.value,
        text_bytes(news.text),
    )
