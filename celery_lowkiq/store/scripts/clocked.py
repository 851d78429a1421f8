"""Client with a clock that tests can move.

It runs modified copies of the scripts, which read the clock's offset; normal scripts never read that key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .client import Client
from .keys import CLOCK_KEY
from .script import Script, ScriptCall, library

_NOW = "return redis.call('TIME')"


class FakeClockClient(Client):
    """Runs scripts with the time of the test's clock."""

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run scripts, with the test's clock. See :meth:`Client.calls`."""
        return super().calls([call._replace(script=_clocked(call.script)) for call in calls])

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run commands; TIME returns the test's clock. See :meth:`Client.commands`."""
        return super().commands(
            [("EVAL", _prelude() + _NOW, 0) if command == ("TIME",) else command for command in commands]
        )

    def now(self) -> float:
        """Return the clock's Unix time in s."""
        ((seconds, micros),) = self.commands([("TIME",)])
        return float(seconds) + float(micros) / 1_000_000

    def move(self, seconds: float) -> None:
        """Move the clock by seconds; backwards when negative."""
        self.commands([("INCRBY", CLOCK_KEY, round(seconds * 1_000_000))])

    def empty(self) -> None:
        """Delete all data of the server, and reset the clock."""
        self.commands([("FLUSHALL",)])


@cache
def _prelude() -> str:
    return f"local clock_key = '{CLOCK_KEY}'\n{library('test_clock')}"


@cache
def _clocked(script: Script) -> Script:
    return replace(script, body=_prelude() + script.body)
