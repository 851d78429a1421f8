"""A store whose clock a test moves. Its scripts are others than those of every other store: what sends the
usual ones never looks at the test's key, whatever is written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .client import Client
from .keys import CLOCK_KEY
from .script import Call, Script, library

_NOW = "return redis.call('TIME')"


class ClockedClient(Client):
    """Sends scripts that take their time from the test's clock."""

    def calls(self, calls: Sequence[Call]) -> list[Any]:
        """As every client's."""
        return super().calls([replace(call, script=_clocked(call.script)) for call in calls])

    def commands(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """As every client's; TIME is the test's, too."""
        return super().commands(
            [("EVAL", _prelude() + _NOW, 0) if command == ("TIME",) else command for command in commands]
        )

    def now(self) -> float:
        """Unix time in s."""
        ((seconds, micros),) = self.commands([("TIME",)])
        return float(seconds) + float(micros) / 1_000_000

    def move(self, seconds: float) -> None:
        """Move the clock, for good; backwards when negative."""
        self.commands([("INCRBY", CLOCK_KEY, round(seconds * 1_000_000))])

    def empty(self) -> None:
        """Forget all that the server has, and set its clock right."""
        self.commands([("FLUSHALL",)])


@cache
def _prelude() -> str:
    return f"local clock_key = '{CLOCK_KEY}'\n{library('test_clock')}"


@cache
def _clocked(script: Script) -> Script:
    return replace(script, body=_prelude() + script.body)
