"""The runner: which inputs are tried, for how long, and how a failing one is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import Random

import pytest

from tests.conftest import Rounds

#: Inputs of all four tests together, and the number of the first one.
INPUTS = int(os.environ.get("LOWKIQ_FUZZ_INPUTS", "2000"))
FIRST = int(os.environ.get("LOWKIQ_FUZZ_SEED", "0"))
TESTS = 4
#: Seconds.
HANG = 1.0

Fuzz = Callable[..., None]


@pytest.fixture
def fuzz(rounds: Rounds) -> Fuzz:
    """``fuzz(attack, 5)`` calls ``attack(random)``, which tries 5 inputs, until all have been tried.

    An attack may take ``hang`` s. One that takes longer is tried again: the machine may have been busy.
    """

    def fuzz(attack: Callable[[Random], object], inputs: int = 1, hang: float = HANG) -> None:
        following, longest = FIRST, 0.0
        for count in rounds(10 * max(1, INPUTS // TESTS)):
            numbers = range(following, following + count, inputs)
            following = numbers[-1] + inputs
            for number in numbers:
                seconds = _try(attack, number)
                if seconds > hang:
                    seconds = min(seconds, _try(attack, number))
                longest = max(longest, seconds)
                assert seconds <= hang, f"input {number} takes {seconds:.1f} s: {_again(number, inputs)}"
        print(f"inputs {FIRST} to {following - 1} were tried; the longest took {longest:.3f} s")

    return fuzz


def _try(attack: Callable[[Random], object], number: int) -> float:
    began = time.monotonic()
    try:
        attack(Random(number))
    except BaseException as error:
        raise AssertionError(f"input {number} fails with {error!r}: {_again(number, 1)}") from error
    return time.monotonic() - began


def _again(number: int, inputs: int) -> str:
    return f"LOWKIQ_FUZZ_SEED={number} LOWKIQ_FUZZ_INPUTS={TESTS * inputs} pytest tests/fuzz tries it again"
