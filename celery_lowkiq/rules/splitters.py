"""How shards are dealt to lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .models import ShardRef

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes' numbers of shards differ by one at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
