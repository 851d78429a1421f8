"""``python -m celery_lowkiq.chaos``: exit status 0 when every gate is passed, 1 when one is not."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict

from celery_lowkiq.rules.errors import LowkiqError

from .checker import Report
from .options import DEFAULT_FAULTS, EXCLUSIONS, FAULTS, Options
from .run import run


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    try:
        options = Options(
            seed=seed,
            nodes=given.nodes,
            seconds=given.seconds,
            lease=given.lease,
            exclusion=given.exclusion,
            faults=frozenset(filter(None, given.faults.split(","))),
            redis_url=given.redis,
        )
        _say(
            f"seed {seed}, {options.nodes} nodes, {options.seconds:g} s, lease {options.lease:g} s, "
            f"{options.exclusion}, faults {','.join(sorted(options.faults))}"
        )
        report = run(options, _say)
    except LowkiqError as error:
        _say(f"error: {error}")
        return 2
    print(as_json(report, seed) if given.json else as_text(report))  # noqa: T201 - a command's output
    return 0 if report.passed else 1


def as_text(report: Report) -> str:
    """A line for each figure and each gate."""
    lines = [f"{name:28} {figure}" for name, figure in report.figures.items()]
    for gate in report.gates:
        figure = "-" if gate.figure is None else f"{gate.figure:.4g}"
        lines.append(
            f"{'ok  ' if gate.passed else 'FAIL'} {gate.name:28} {figure} (at most {gate.limit:.4g})"
        )
        lines += [f"       {example}" for example in gate.examples]
    return "\n".join(lines)


def as_json(report: Report, seed: int) -> str:
    """The report as one JSON object; a time without end is null."""
    gates = [{**asdict(gate), "figure": _finite(gate.figure), "passed": gate.passed} for gate in report.gates]
    return json.dumps({"seed": seed, "passed": report.passed, "figures": report.figures, "gates": gates})


def _finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command's output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m celery_lowkiq.chaos", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="worker processes (4)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are made (60)")
    parser.add_argument("--lease", type=float, default=1.0, help="lease time in s (1)")
    parser.add_argument("--seed", type=int, help="repeats the faults of a run; drawn when left out")
    parser.add_argument("--exclusion", choices=EXCLUSIONS, default=EXCLUSIONS[0])
    parser.add_argument(
        "--faults",
        default=",".join(name for name in FAULTS if name in DEFAULT_FAULTS),
        help=f"any of {','.join(FAULTS)}; default %(default)s",
    )
    parser.add_argument("--redis", metavar="URL", help="your Redis, in place of one of its own")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
