"""The table, the results file, and the comparison with an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .row import Row

RESULTS = Path(__file__).parent / "results"
#: A row that became slower by more than this is marked.
TOLERANCE = 0.05


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def verdict(row: Row) -> str:
    """The last cell of a row."""
    return {True: "met", False: "MISSED", None: ""}[row.met]


def table(rows: Sequence[Row]) -> str:
    """All rows as a Markdown table."""
    head = ["row", "what", "ours", "unit", "other side", "ratio", "target", ""]
    cells = [
        [
            row.name,
            row.text,
            number(row.ours),
            row.unit,
            f"{number(row.other)} {row.other_text}".strip(),
            f"{number(row.ratio)}x" if row.ratio else "",
            ", ".join(map(str, row.targets)),
            verdict(row),
        ]
        for row in rows
    ]
    return _aligned([head, *cells])


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])


def write(
    rows: Sequence[Row], machine: Mapping[str, Any], options: Mapping[str, Any], curves: Mapping[str, Any]
) -> Path:
    """A file of its own for each run: results/<date>.json. Returns its path."""
    now = datetime.now(timezone.utc)
    content = {
        "date": now.isoformat(timespec="seconds"),
        "machine": dict(machine),
        "options": dict(options),
        "rows": [row.as_json() for row in rows],
        "curves": dict(curves),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def read(path: Path) -> list[Row]:
    """The rows of a results file."""
    return [Row.from_json(row) for row in json.loads(path.read_text())["rows"]]


@dataclass(frozen=True)
class Change:
    """How a row's cost changed between two runs: 0.1 is 10 % more."""

    name: str
    change: float
    yardstick: str

    @property
    def slower(self) -> bool:
        """Whether it is marked."""
        return self.change > TOLERANCE


def compare(before: Sequence[Row], after: Sequence[Row]) -> list[Change]:
    """Changes of the rows that both runs have."""
    earlier = {row.name: row for row in before}
    return [
        Change(row.name, row.relative_cost / earlier[row.name].relative_cost - 1, row.yardstick)
        for row in after
        if row.name in earlier and earlier[row.name].relative_cost
    ]


def changes(found: Sequence[Change]) -> str:
    """The comparison as a table."""
    lines = [["row", "cost", "measured by", ""]]
    lines += [[c.name, f"{c.change:+.1%}", c.yardstick, "SLOWER" if c.slower else ""] for c in found]
    return _aligned(lines)
