"""The runner: which inputs are tried, for how long, and how a failing one is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.conftest import Rounds

#: Inputs of all four tests together, and the number of the first one.
INPUTS = int(os.environ.get("LOWKIQ_FUZZ_INPUTS", "2000"))
FIRST = int(os.environ.get("LOWKIQ_FUZZ_SEED", "0"))
TESTS = 4
#: Seconds, and how often an input that takes longer is tried: the machine may have been busy.
HANG, TRIES = 1.0, 3
#: Seconds that a busy machine may add to a round with innocent jobs, whose own time `Node.in_time` measures.
BUSY = 5.0

Fuzz = Callable[..., None]


@pytest.fixture
def fuzz(rounds: Rounds) -> Fuzz:
    """``fuzz(attack, 5)`` calls ``attack(random)``, which tries 5 inputs, until all have been tried.

    None may take more than ``hang`` s.
    """

    def fuzz(attack: Callable[[Random], object], inputs: int = 1, hang: float = HANG) -> None:
        following, longest = FIRST, 0.0
        for count in rounds(10 * max(1, INPUTS // TESTS)):
            numbers = range(following, following + count, inputs)
            following = numbers[-1] + inputs
            for number in numbers:
                with _named(number, inputs):
                    longest = max(longest, seconds_of(lambda number=number: attack(Random(number)), hang))
        print(f"inputs {FIRST} to {following - 1} were tried; the longest took {longest:.3f} s")

    return fuzz


def seconds_of(act: Callable[[], object], hang: float = HANG) -> float:
    """How long an act takes. Fails when it takes more than ``hang`` s each time."""
    for _ in range(TRIES):
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        if seconds <= hang:
            return seconds
    raise AssertionError(f"hangs for {seconds:.1f} s")


@contextmanager
def _named(number: int, inputs: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        again = f"LOWKIQ_FUZZ_SEED={number} LOWKIQ_FUZZ_INPUTS={TESTS * inputs} pytest tests/fuzz"
        raise AssertionError(f"input {number} fails with {error!r}. Try it again: {again}") from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was logged may have half characters, which xdist cannot send."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
