"""Slots that move between masters of which one has not heard of the others' epochs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.masters import Masters
from tests.clusters import Cluster


class Gossip:
    """Three nodes; the first one hears of the last epoch when it is asked for the third time."""

    def __init__(self) -> None:
        self.servers: list[Any] = []
        self.living = {0, 1, 2}
        self.asked: list[tuple[int, str]] = []

    def ask(self, number: int, *words: Any) -> Any:
        self.asked.append((number, words[0]))
        if words[0] != "CLUSTER INFO":
            return b""
        behind = number == 0 and self.asked.count((0, "CLUSTER INFO")) < 3
        return {"cluster_current_epoch": "4" if behind else "6"}

    def owner(self, slot: int) -> int:
        return 2

    def id(self, number: int) -> str:
        return f"node {number}"

    def _set_slots(self, number: int, *words: Any) -> None:
        self.asked.append((number, "CLUSTER SETSLOT"))


class Slots(Gossip, Cluster):
    """A slot moves."""


class ManySlots(Gossip, Masters):
    """Slots move."""


@pytest.mark.parametrize(
    "move", [lambda: begun(Slots()), lambda: moved(ManySlots())], ids=["a slot", "many slots"]
)
def test_a_move_begins_when_all_nodes_know_the_last_epoch(move):
    asked = move()
    assert (
        asked.index((0, "CLUSTER SETSLOT"))
        > [n for n, one in enumerate(asked) if one == (0, "CLUSTER INFO")][2]
    )


def begun(cluster):
    cluster.begin_move(14828, 0)
    return cluster.asked


def moved(masters):
    masters.move_all([], 2, 0)
    return masters.asked
