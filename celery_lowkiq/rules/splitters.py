"""How shards are dealt to lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import ConfigurationError
from .models import ShardRef

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def lease_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Every node wants every shard, and shares them with the others (``rules.balance``)."""
    return default_splitter(shards, lanes)


def by_node_splitter(nodes: int, number: int) -> Splitter:
    """The fixed part of node ``number`` (from 0), dealt in turn to its lanes. Raises ConfigurationError."""
    if not 0 <= number < nodes:
        raise ConfigurationError(
            f"node number {number}: with {nodes} nodes 0 to {nodes - 1} is allowed "
            "(settings lowkiq_node_number and lowkiq_number_of_nodes, or the same in the environment)"
        )

    def split(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
        return default_splitter(shards[number::nodes], lanes)

    return split


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes' numbers of shards differ by one at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
