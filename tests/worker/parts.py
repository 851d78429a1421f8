"""Splitters of two nodes, each of which has a fixed part of the shards."""

from __future__ import annotations

from collections.abc import Sequence

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.shares import default_splitter


def first(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """The part of the first node."""
    return default_splitter(shards[0::2], lanes)


def second(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """The part of the second node."""
    return default_splitter(shards[1::2], lanes)
