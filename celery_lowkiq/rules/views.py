"""What listings show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from .models import Job, LeaseState, Payload, ShardRef, Stats

T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class DeadJob:
    """A job in the morgue; ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[Payload, ...]
    updated_at: float
    error: bytes | None = None
    #: How many payloads it has; a listing may show fewer of them.
    payload_count: int = 0


@dataclass(frozen=True)
class Found:
    """Where an id was found; it may be in several places at once."""

    waiting: Job | None = None
    processing: Job | None = None
    dead: DeadJob | None = None


@dataclass(frozen=True)
class Try:
    """A failed run of a job: when (Unix s), its retry_count after it, the node, and the error's last line."""

    at: float
    retry_count: int
    node: str
    error: str


@dataclass(frozen=True)
class Paused:
    """Since when (Unix s) a queue is paused, and which of its shards by themselves; how many ids are."""

    queue: float | None
    shards: Mapping[int, float]
    ids: int


@dataclass(frozen=True)
class PausedId:
    """An id that is paused since then (Unix s), whether anything waits of it or not."""

    id: str
    since: float


@dataclass(frozen=True)
class ShardLook:
    """A shard at one moment: its counts, and its lease (which names no server)."""

    shard: ShardRef
    stats: Stats
    lease: LeaseState


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a listing. ``next`` goes into ``after`` for the following part; None at the end."""

    items: tuple[T, ...]
    next: str | None
