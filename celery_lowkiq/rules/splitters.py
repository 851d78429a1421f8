"""How shards are dealt to lanes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from .errors import ConfigurationError
from .models import ShardRef

#: ``(shards, number of lanes) -> the shards of each lane``.
Splitter = Callable[[Sequence[ShardRef], int], "list[tuple[ShardRef, ...]]"]


def lease_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Every node wants every shard, and shares them with the others (``rules.balance``)."""
    return default_splitter(shards, lanes)


def by_node_splitter(nodes: int, number: int) -> Splitter:
    """The fixed part of node ``number`` (from 0) of so many nodes, dealt in turn."""

    def split(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
        return default_splitter(shards[number::nodes], lanes)

    return split


def by_node_from_environment(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """The part of LOWKIQ_NODE_NUMBER (from 0) among LOWKIQ_NUMBER_OF_NODES. Raises ConfigurationError."""
    nodes = _whole_number("LOWKIQ_NUMBER_OF_NODES", 1)
    number = _whole_number("LOWKIQ_NODE_NUMBER", 0)
    if number >= nodes:
        raise ConfigurationError(
            f"LOWKIQ_NODE_NUMBER={number}: with {nodes} nodes 0 to {nodes - 1} is allowed"
        )
    return by_node_splitter(nodes, number)(shards, lanes)


def _whole_number(name: str, smallest: int) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal() or int(text) < smallest:
        raise ConfigurationError(
            f"{name}={text!r}: lowkiq_splitter='by_node' needs a whole number from {smallest} there"
        )
    return int(text)


def default_splitter(shards: Sequence[ShardRef], lanes: int) -> list[tuple[ShardRef, ...]]:
    """Deal the shards in turn, so that the lanes' numbers of shards differ by one at most."""
    return [tuple(shards[lane::lanes]) for lane in range(lanes)]
