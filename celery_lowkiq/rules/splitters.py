"""Splitters: deal a node's shards to its lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import ConfigurationError
from .models import ShardRef

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def lease_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal all shards on every node; the nodes share them by leases and quotas (``rules.balance``)."""
    return default_splitter(shards, lanes)


def by_node_splitter(nodes: int, number: int) -> Splitter:
    """Return a splitter for the fixed part of node ``number`` (from 0). Raises ConfigurationError."""
    if not 0 <= number < nodes:
        raise ConfigurationError(
            f"lowkiq_node_number={number} is invalid: expected 0 to {nodes - 1} for {nodes} nodes. Set "
            "lowkiq_node_number and lowkiq_number_of_nodes, in the settings or in the environment"
        )

    def split(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
        return default_splitter(shards[number::nodes], lanes)

    return split


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes differ by one shard at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
