"""One row of the table: what was measured, beside what, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .cost import Cost, medians

OURS = "ours"


@dataclass(frozen=True)
class Target:
    """A limit of a row's figure, or of its ratio to the side ``of``, in wall time or in a party's ``cpu``."""

    limit: float
    of: str = ""
    cpu: str = ""
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Whether the value is within the limit."""
        return self.strain(value) <= 1

    def strain(self, value: float) -> float:
        """How much of the limit is used up: above 1, it is missed."""
        return self.limit / value if self.at_least else value / self.limit

    def __str__(self) -> str:
        party = f"{self.cpu} CPU " if self.cpu else ""
        return f"{party}{'>=' if self.at_least else '<='} {self.limit:g}{'x' if self.of else ''}"


@dataclass(frozen=True)
class Side:
    """A figure beside ours. None: what it needs is not installed."""

    name: str
    figure: float | None
    #: Processor time of those that take part, in the unit of the row.
    cpu: Mapping[str, float] = field(default_factory=dict)
    #: The figures of all rounds; ``figure`` is their median.
    repeats: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, costs: Sequence[Cost]) -> Side:
        """The medians of rounds."""
        if not costs:
            return cls(name, None)
        cost = medians(costs)
        return cls(name, cost.wall, cost.cpu, tuple(cost.wall for cost in costs))


@dataclass(frozen=True)
class Row:
    """A measured figure, beside those of other sides."""

    name: str
    text: str
    unit: str
    ours: float
    others: tuple[Side, ...] = ()
    targets: tuple[Target, ...] = ()
    cpu: Mapping[str, float] = field(default_factory=dict)
    more_is_better: bool = False
    #: What two runs are compared by: the ratios to the "others", the "machine" (the calibration loop that
    #: ran just before the row; also without any other side), or "nothing" where a slow machine changes
    #: nothing.
    yardstick: str = "others"
    #: Microseconds of the calibration loop.
    calibration: float = 0.0
    note: str = ""
    #: All repeats of a row that was measured several times.
    repeats: tuple[float, ...] = ()

    @classmethod
    def of_costs(
        cls, name: str, text: str, costs: Mapping[str, Sequence[Cost]], *targets: Target, unit: str = "us/job"
    ) -> Row:
        """The medians of each side; the first one is ours."""
        ours, *others = (Side.of(side, found) for side, found in costs.items())
        assert ours.figure is not None
        return cls(name, text, unit, ours.figure, tuple(others), targets, cpu=ours.cpu, repeats=ours.repeats)

    @property
    def sides(self) -> tuple[Side, ...]:
        """All of them, ours first."""
        return (Side(OURS, self.ours, self.cpu, self.repeats), *self.others)

    def ratio(self, side: Side, cpu: str = "") -> float | None:
        """Ours divided by that of another side; None when one of them was not measured."""
        ours, other = (self.cpu.get(cpu), side.cpu.get(cpu)) if cpu else (self.ours, side.figure)
        return ours / other if ours and other else None

    def targets_of(self, side: Side) -> dict[Target, float | None]:
        """The targets that name this side, or that name none for ours, with what was measured."""
        of = "" if side.name == OURS else side.name
        return {
            target: self.ratio(side, target.cpu) if of else self.ours
            for target in self.targets
            if target.of == of
        }

    @property
    def strain(self) -> float | None:
        """How much of its hardest target is used up: above 1, the row is missed. None without a target."""
        found = [
            target.strain(value)
            for side in self.sides
            for target, value in self.targets_of(side).items()
            if value is not None
        ]
        return max(found, default=None)

    @property
    def met(self) -> bool | None:
        """Whether all targets are met whose side is installed; None for a row without any."""
        return None if self.strain is None else self.strain <= 1

    @property
    def relative_costs(self) -> dict[str, float]:
        """The cost by each yardstick; two runs on noisy machines can be compared by them."""
        ours = 1 / self.ours if self.more_is_better else self.ours
        if self.yardstick == "nothing":
            return {"itself": ours}
        if self.yardstick == "machine" or not self.others:
            return {"machine": ours / (self.calibration or 1.0)}
        return dict(self._ratios())

    def _ratios(self) -> Iterator[tuple[str, float]]:
        """Of the figure, and of all processor time."""
        for side in self.others:
            if ratio := self.ratio(side):
                yield side.name, 1 / ratio if self.more_is_better else ratio
            if self.cpu and side.cpu:
                yield f"{side.name}, CPU", sum(self.cpu.values()) / sum(side.cpu.values())

    def calibrated(self, microseconds: float) -> Row:
        """The same row, measured on a machine that fast."""
        return replace(self, calibration=microseconds)

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        ratios = {side.name: ratio for side in self.others if (ratio := self.ratio(side))}
        return {**asdict(self), "ratios": ratios, "met": self.met}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """What ``as_json`` made."""
        fields = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        targets = tuple(Target(**target) for target in data["targets"])
        others = tuple(Side(**{**side, "repeats": tuple(side["repeats"])}) for side in data["others"])
        return cls(**{**fields, "targets": targets, "others": others, "repeats": tuple(data["repeats"])})
