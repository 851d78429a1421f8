"""Faults of a cluster come one at a time, and the first of each kind is not left out."""

from __future__ import annotations

import time

import pytest

from tests.chaos.checker import check
from tests.chaos.cluster_faults import ALLOWED, ClusterFaults
from tests.chaos.history import Drain, History, Push
from tests.chaos.plan import AddMaster, HoldSlot, MoveSlots
from tests.waiting import eventually


class Steady:
    """A cluster that does what it is told."""

    living = ()

    def masters(self):
        return [0, 1]

    def owner(self, slot):
        return 0

    def ranges(self, number):
        return [(0, 16383)]

    def is_whole(self):
        return True

    def begin_move(self, slot, target):
        pass

    def abort_move(self, slot, source, target):
        pass

    def move_all(self, slots, source, target):
        pass

    def line(self, number):
        return None


class Notes:
    def __init__(self):
        self.kinds = []

    def note(self, event, *, kind, **fields):
        self.kinds.append(kind)


class Nodes:
    def tend(self):
        pass


@pytest.fixture
def journal():
    return Notes()


@pytest.fixture
def faults(journal):
    return ClusterFaults(Nodes(), None, Steady(), journal, "orders", 12)


ABORTED = HoldSlot(0.0, 1, 0, 0.01, aborted=True)
MOVED = MoveSlots(0.0, 1, 0, 2)


def happened(faults, journal, kinds):
    def look():
        faults._wait_until(time.monotonic() + 0.01)
        return len(journal.kinds) >= len(kinds)

    eventually(look)
    assert journal.kinds == kinds


def test_the_first_of_a_kind_waits_until_another_one_is_mended(faults, journal):
    for fault in (ABORTED, ABORTED, MOVED, MOVED):
        faults._make(fault)
    happened(faults, journal, ["aborted move", "slots moved"])
    # None of a kind that has happened waits.
    faults._make(ABORTED)
    faults._make(MOVED)
    happened(faults, journal, ["aborted move", "slots moved", "aborted move"])
    assert not faults._waiting


def test_none_begins_when_the_run_is_over(faults, journal):
    faults.run([ABORTED, AddMaster(0.0, (1,), 1.0)], 0.0)
    assert journal.kinds == ["aborted move"]
    assert not faults._waiting


def test_figures_of_what_is_allowed_are_in_the_report():
    """The list names them; a reader looks for them."""
    unconfirmed = (Push("a", 1, 0.0, 0.0),)
    figures = check(History(1.0, False, Drain(0.0), cluster=True, unconfirmed=unconfirmed)).figures
    named = [text.rstrip(")").split(": ")[1] for text in ALLOWED if "(figure" in text]
    assert {name for names in named for name in names.split(", ")} == {
        "not confirmed",
        "not confirmed and lost",
        "frozen overlaps",
    }
    assert all(name in figures for names in named for name in names.split(", "))
