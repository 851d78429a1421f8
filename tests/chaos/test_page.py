"""The page about chaos runs names every option, fault and gate."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.chaos.__main__ import _parser
from tests.chaos.checker import check
from tests.chaos.history import Drain, Execution, History, Push, Trouble
from tests.chaos.options import FAULTS, OF_A_CLUSTER

PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text()
ROWS = re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)


def test_every_option_has_a_row():
    options = {name for action in _parser()._actions for name in action.option_strings} - {"-h", "--help"}
    assert {word for row in ROWS for word in re.findall(r"`(--[a-z-]+)`", row)} == options


def test_every_fault_has_a_row():
    assert {*FAULTS, *OF_A_CLUSTER} <= {row.strip("`") for row in ROWS}


def test_every_gate_has_a_row():
    ran = Execution(1, 0, 1, 0.0, 0.1, 0.2, {"a": (1,)})
    calm = History(
        1.0, False, Drain(0.0), (Push("a", 1, 0.0, 0.0),), (ran,), troubles=(Trouble("rebalance", 0, 0),)
    )
    gates = [*check(calm).gates, *check(replace(calm, cluster=True)).gates]
    assert {gate.name for gate in gates} <= set(ROWS)
