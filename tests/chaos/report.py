"""The gates of a run, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: How much of what is wrong a gate shows.
EXAMPLES = 5


@dataclass(frozen=True)
class Gate:
    """One demand: its figure (None: nothing to measure) and the most that it may be."""

    name: str
    figure: float | None
    limit: float
    examples: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.figure is None or self.figure <= self.limit


@dataclass(frozen=True)
class Report:
    """The gates, and figures that are shown beside them."""

    gates: tuple[Gate, ...]
    figures: dict[str, Any]

    @property
    def passed(self) -> bool:
        return all(gate.passed for gate in self.gates)

    def failed(self) -> set[str]:
        """Names of the gates that failed."""
        return {gate.name for gate in self.gates if not gate.passed}
