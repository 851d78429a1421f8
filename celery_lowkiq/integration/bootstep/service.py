"""What a worker serves, in words: the lines of its banner, and one line of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_lowkiq.rules.text import count_of, listed

#: Why a queue is not served.
NOT_NAMED, EXCLUDED, CANCELLED = "-Q does not name it", "-X names it", "cancel_consumer"
#: The word of -Q and -X for all ordered queues.
ALL_ORDERED = "lowkiq"
#: Advice to a worker whose -Q names no ordered queue.
NAME_THEM = (
    f"add their names, a pattern, or {ALL_ORDERED} for all of them to -Q; "
    f"add -X {ALL_ORDERED} if other workers serve them"
)
#: Maximum number of queues that the log line, or a line of the banner, names for one reason.
LISTED = 10


@dataclass(frozen=True)
class Service:
    """The ordered queues that a worker serves, and how."""

    #: Declared number of shards of each served queue.
    shards: Mapping[str, int]
    #: Why each of the others is not served.
    reasons: Mapping[str, str] = field(default_factory=dict)
    lanes: int = 0
    exclusion: str = ""
    #: Address of Redis, without user and password.
    store: str = ""

    def banner(self) -> list[str]:
        """Return lines in the form of Celery's banner; none for an app without ordered queues."""
        if not (self.shards or self.reasons):
            return []
        rows = [f"  .> {name:<16} shards={shards}" for name, shards in self.shards.items()]
        if self.shards:
            rows.append(f"  lanes={self.lanes} exclusion={self.exclusion} store={self.store}")
        return ["[ordered queues]", *rows, *(f"  .> not served: {text}" for text in self._not_served())]

    def sentence(self) -> str:
        """Return the same as one line."""
        parts = ["no ordered queue is served"]
        if self.shards:
            queues = listed(
                [f"{name} ({count_of(shards, 'shard')})" for name, shards in self.shards.items()], LISTED
            )
            parts = [
                f"ordered queues are served by {count_of(self.lanes, 'lane')}: {queues}",
                f"exclusion: {self.exclusion}",
                f"store: {self.store}",
            ]
        advice = [NAME_THEM] if self.is_overlooked else []
        return "; ".join([*parts, *(f"not served: {text}" for text in self._not_served()), *advice])

    @property
    def is_overlooked(self) -> bool:
        """Whether the worker serves no ordered queue, and its -Q does not name some."""
        return not self.shards and NOT_NAMED in self.reasons.values()

    def _not_served(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(name)
        return [f"{listed(names, LISTED)} ({reason})" for reason, names in by_reason.items()]
