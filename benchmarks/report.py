"""The table, the results file, and the comparison with an earlier run.

``python -m benchmarks.report FILES`` prints the table of several runs, each row from its worst one;
``--write`` writes it into docs/performance.md, with the plot and the profile of the last full run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .cost import PARTIES
from .row import OURS, Row, Side

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PLOT = PAGE.parent / "_static" / "performance.svg"
#: Markers of the section that ``--write`` writes.
BEGIN = "<!-- begin of python -m benchmarks.report --write -->\n\n"
END = "\n\n<!-- end of python -m benchmarks.report --write -->"
#: A row that became slower by more than this is marked.
TOLERANCE = 0.05
HEAD = ["row", "what", "side", "figure", "unit", *(f"{party} CPU" for party in PARTIES), "ours", "target", ""]


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 or not value else 3
    return f"{value:,.{digits}f}"


def table(rows: Sequence[Row]) -> str:
    """All rows as a Markdown table, with a line for each side."""
    return _aligned(_all_lines(rows))


def _all_lines(rows: Sequence[Row]) -> list[list[str]]:
    return [HEAD, *(line for row in rows for line in _lines(row))]


def _lines(row: Row) -> Iterator[list[str]]:
    for side in row.sides:
        targets = row.targets_of(side)
        missed = any(value is not None and not target.met_by(value) for target, value in targets.items())
        measured = any(value is not None for value in targets.values())
        yield [
            *((row.name, row.text) if side.name == OURS else ("", "")),
            side.name,
            *((number(side.figure), row.unit) if side.figure is not None else ("not installed", "")),
            *(number(side.cpu.get(party)) for party in PARTIES),
            _ratios(row, side),
            ", ".join(map(str, targets)),
            "MISSED" if missed else "met" if measured else "",
        ]


def _ratios(row: Row, side: Side) -> str:
    """How ours stands to this side; and by the CPU that a target names."""
    if side.name == OURS:
        return ""
    cpus = [target.cpu for target in row.targets_of(side) if target.cpu]
    found = [("", row.ratio(side)), *((f"{cpu} CPU ", row.ratio(side, cpu)) for cpu in cpus)]
    return ", ".join(f"{words}{number(ratio)}x" for words, ratio in found if ratio is not None)


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return _markdown(padded, ["-" * width for width in widths])


def _markdown(lines: list[list[str]], rule: list[str]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def write(
    rows: Sequence[Row],
    machine: Mapping[str, Any],
    options: Mapping[str, Any],
    curves: Mapping[str, Any],
    profile: str = "",
) -> Path:
    """A file of its own for each run: results/<date>.json. Returns its path."""
    now = datetime.now(timezone.utc)
    content = {
        "date": now.isoformat(timespec="seconds"),
        "machine": dict(machine),
        "options": dict(options),
        "rows": [row.as_json() for row in rows],
        "curves": dict(curves),
        "profile": profile,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def read(path: Path) -> list[Row]:
    """The rows of a results file."""
    return rows_of(json.loads(path.read_text()))


def rows_of(run: Mapping[str, Any]) -> list[Row]:
    """The rows of what a results file holds."""
    return [Row.from_json(row) for row in run["rows"]]


@dataclass(frozen=True)
class Change:
    """How a row's cost changed between two runs, by one yardstick: 0.1 is 10 % more."""

    name: str
    change: float
    yardstick: str

    @property
    def slower(self) -> bool:
        """Whether it is marked."""
        return self.change > TOLERANCE


def compare(before: Sequence[Row], after: Sequence[Row]) -> list[Change]:
    """Changes of the rows that both runs have, by each yardstick that both have."""
    earlier = {row.name: row.relative_costs for row in before}
    return [
        Change(row.name, cost / earlier[row.name][yardstick] - 1, yardstick)
        for row in after
        for yardstick, cost in row.relative_costs.items()
        if earlier.get(row.name, {}).get(yardstick)
    ]


def changes(found: Sequence[Change]) -> str:
    """The comparison as a table."""
    lines = [["row", "cost", "measured by", ""]]
    lines += [[c.name, f"{c.change:+.1%}", c.yardstick, "SLOWER" if c.slower else ""] for c in found]
    return _aligned(lines)


def guard(before: Sequence[Row], after: Sequence[Row]) -> None:
    """Print the comparison. Raises SystemExit when a row is marked."""
    found = compare(before, after)
    print(changes(found))
    if marked := {change.name: None for change in found if change.slower}:
        raise SystemExit(f"slower than before: {', '.join(marked)}")


def worst(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Each row from the run in which its hardest target was nearest to be missed; without a target, from the
    run with the highest cost.
    """
    found: dict[str, list[Row]] = {}
    for row in (row for run in runs for row in run):
        found.setdefault(row.name, []).append(row)
    return [max(rows, key=_badness) for rows in found.values()]


def _badness(row: Row) -> float:
    return row.strain if row.strain is not None else max(row.relative_costs.values())


def measured(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section of the docs: where and when, the table, and the last profile."""
    whens = [f"{run['date'][:16].replace('T', ' ')} (load {run['machine']['load']})" for run in runs]
    facts: dict[str, dict[str, None]] = {}
    for name, value in (fact for run in runs for fact in run["machine"].items()):
        if value is not None and name != "load":
            facts.setdefault(name, {})[str(value)] = None
    machine = ", ".join(f"{name} {' or '.join(values)}" for name, values in facts.items())
    text = f"The worst run of each row, of these: {', '.join(whens)}, UTC. Measured on: {machine}."
    lines = _all_lines(worst([rows_of(run) for run in runs]))
    wrapped = "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False))
    parts = [wrapped, _markdown(lines, ["---"] * len(HEAD))]
    if profiles := [run["profile"] for run in runs if run.get("profile")]:
        parts.append(f"The profile of the last of them:\n\n```text\n{profiles[-1]}\n```")
    return "\n\n".join(parts)


def into(page: str, section: str) -> str:
    """The page with the section between its markers."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{section}{END}", page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description="The table of several runs, each row from its worst."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of the bench")
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="compare the last one with an earlier one"
    )
    options = parser.parse_args()
    files = sorted(options.files)
    if options.against:
        guard(read(options.against), read(files[-1]))
        return
    section = measured([json.loads(path.read_text()) for path in files])
    if not options.write:
        print(section)
        return
    PAGE.write_text(into(PAGE.read_text(), section))
    for plot in (path.with_suffix(".svg") for path in files):
        if plot.exists():
            shutil.copy(plot, PLOT)


if __name__ == "__main__":
    main()
