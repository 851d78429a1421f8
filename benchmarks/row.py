"""One line of the table: what was measured, beside what, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Target:
    """A limit of a row's figure, or of its ratio to the other side."""

    limit: float
    at_least: bool = False
    of_ratio: bool = False

    def met_by(self, value: float) -> bool:
        """Whether the value is within the limit."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{'x' if self.of_ratio else ''}"


@dataclass(frozen=True)
class Row:
    """A measured figure. ``ratio`` is ours / other, or other / ours for a ``speedup``."""

    name: str
    text: str
    unit: str
    ours: float
    other: float | None = None
    other_text: str = ""
    targets: tuple[Target, ...] = ()
    speedup: bool = False
    more_is_better: bool = False
    #: What two runs are compared by: the ratio to the "other" side, the "machine" (the calibration loop
    #: that ran just before the row), or "nothing" where a slow machine changes nothing.
    yardstick: str = "machine"
    #: Microseconds of the calibration loop.
    calibration: float = 0.0
    note: str = ""
    #: All repeats of a row that was measured several times.
    repeats: tuple[float, ...] = field(default=())

    @property
    def ratio(self) -> float | None:
        """How ours stands to the other side."""
        if not self.other or not self.ours:
            return None
        return self.other / self.ours if self.speedup else self.ours / self.other

    @property
    def met(self) -> bool | None:
        """Whether all targets are met; None for a row without any."""
        if not self.targets:
            return None
        return all(
            value is not None and target.met_by(value)
            for target in self.targets
            for value in [self.ratio if target.of_ratio else self.ours]
        )

    @property
    def relative_cost(self) -> float:
        """The cost by the row's yardstick, which two runs on noisy machines can be compared by."""
        by = {"other": self.other, "machine": self.calibration, "nothing": 1.0}[self.yardstick] or 1.0
        return by / self.ours if self.more_is_better else self.ours / by

    def calibrated(self, microseconds: float) -> Row:
        """The same row, measured on a machine that fast."""
        return replace(self, calibration=microseconds)

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """What ``as_json`` made."""
        fields = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        targets = tuple(Target(**target) for target in data["targets"])
        return cls(**{**fields, "targets": targets, "repeats": tuple(data["repeats"])})
