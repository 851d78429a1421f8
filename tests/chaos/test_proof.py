"""What a run must have shown: each kind of fault, and in a long run enough of all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.checker import check
from tests.chaos.history import Drain, Execution, History, Planned, Push, Trouble
from tests.chaos.options import DEFAULT_FAULTS, FAULTS, ON_A_CLUSTER, Options
from tests.chaos.plan import SETTLE, plan
from tests.chaos.proof import ALL_KINDS, FEWEST, LAST, LONG, kind_of, planned, proof_gates

KINDS, LITTLE = "kinds of faults that did not happen", "too little in a long run"
#: A second after its call, a payload runs; nothing else happens.
RAN = History(
    1.0,
    False,
    Drain(0.0),
    (Push("a", 1, 0.0, 0.0),),
    (Execution(101, 0, 1, 1.0, 1.0, 1.1, {"a": (1,)}),),
)


def with_faults(*troubles, seconds=LONG, **faults):
    of_run = Planned(seconds, faults, frozenset(faults))
    return replace(RAN, planned=of_run, troubles=tuple(Trouble(kind, 5.0, 6.0) for kind in troubles))


def gates(history, **measured):
    return {gate.name: gate for gate in proof_gates(history, measured)}


@pytest.mark.parametrize(
    "options",
    [
        Options(7, seconds=3600, faults=frozenset(FAULTS)),
        Options(7, seconds=3600, faults=ON_A_CLUSTER, cluster=True, pause=2.0),
    ],
    ids=["one Redis", "cluster"],
)
def test_faults_have_the_kinds_that_are_asked_for(options):
    assert {kind_of(fault) for fault in plan(7, options)} == options.faults
    assert planned(options).expected == options.faults


def test_only_what_is_planned_in_time_is_expected():
    """Sizes come first, SETTLE apart; then nodes are replaced."""
    alone = Options(1, faults=frozenset({"rebalance"}), seconds=ALL_KINDS)
    assert planned(alone).expected == {"rebalance"}
    assert planned(replace(alone, seconds=ALL_KINDS - 1)).expected == frozenset()
    late = Options(1, faults=DEFAULT_FAULTS, seconds=ALL_KINDS, pause=2 * (ALL_KINDS - LAST))
    assert planned(late).faults
    assert planned(late).expected == frozenset()
    assert SETTLE < LAST


def test_a_kind_that_never_happened_fails_a_run():
    history = with_faults("kill", "hole", "slots moved to a new master", kill=3, cut=1, masters=2)
    (gate,) = [gate for gate in check(history).gates if gate.name == KINDS]
    assert (gate.figure, gate.passed, gate.examples) == (1, False, ("masters",))
    happened = with_faults("kill", "hole", "master added and removed", kill=3, cut=1, masters=2)
    assert gates(happened)[KINDS].passed


def test_kills_at_the_end_are_no_faults_of_the_plan():
    assert gates(with_faults("kill at rest", kill=1))[KINDS].examples == ("kill",)


def test_how_often_each_kind_happened_and_was_left_out_is_counted():
    figures = check(with_faults("kill", "kill", "cut", "down", kill=2, cut=5, slot=1)).figures
    assert figures["faults that happened"] == {"cut": 2, "kill": 2, "slot": 0}
    assert figures["faults left out"] == {"cut": 3, "slot": 1}


def test_a_long_run_with_few_faults_fails():
    few = with_faults(*["kill"] * (FEWEST - 1), kill=200)
    gate = gates(few)[LITTLE]
    assert (gate.passed, gate.examples) == (False, ("99 faults, fewer than 100",))
    assert gates(with_faults(*["kill"] * FEWEST, kill=200))[LITTLE].passed
    assert gates(with_faults("kill", kill=1, seconds=LONG - 1))[LITTLE].passed


def test_a_long_run_that_measured_nothing_fails():
    enough = ["kill"] * FEWEST
    gate = gates(with_faults(*enough, kill=200), takeovers=3, silences=0)[LITTLE]
    assert (gate.passed, gate.examples) == (False, ("no silences measured",))
    assert gates(with_faults(*enough, kill=200, seconds=LONG - 1), silences=0)[LITTLE].passed


def test_a_long_run_on_a_cluster_measures_takeovers_silences_and_hand_overs():
    faults = {"kill": 1, "slots": 200}
    happened = ("kill", *["slots moved"] * FEWEST)
    report = check(replace(with_faults(*happened, **faults), cluster=True, executions=()))
    (gate,) = [gate for gate in report.gates if gate.name == LITTLE]
    assert gate.examples == (
        "no hand-overs measured",
        "no healthy silences measured",
        "no takeovers measured",
    )
    assert {report.figures[text.removeprefix("no ")] for text in gate.examples} == {0}


def test_a_run_without_kills_measures_no_takeovers():
    assert gates(with_faults(*["cut"] * FEWEST, cut=200), takeovers=0)[LITTLE].passed
