"""``python -m tests.chaos``: exit status 0 when every gate is passed, 1 when one is not."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from celery_lowkiq.rules.errors import LowkiqError
from tests.chaos.compare import Side, compare
from tests.chaos.options import DEFAULT_FAULTS, EXCLUSIONS, FAULTS, OF_A_CLUSTER, ON_A_CLUSTER, Options
from tests.chaos.report import EXAMPLES, Report
from tests.chaos.run import run

#: Lease time, and average time between two faults: in s, on one Redis and on a cluster.
LEASES = (1.0, 5.0)
PAUSES = (0.4, 2.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    faults = sorted(ON_A_CLUSTER if given.cluster else DEFAULT_FAULTS)
    try:
        options = Options(
            seed=seed,
            nodes=given.nodes,
            seconds=given.seconds,
            lease=LEASES[given.cluster] if given.lease is None else given.lease,
            pause=PAUSES[given.cluster] if given.pause is None else given.pause,
            exclusion=given.exclusion,
            faults=frozenset(faults if given.faults is None else filter(None, given.faults.split(","))),
            cluster=given.cluster,
            redis_url=given.redis,
            awaits=given.awaits,
            shards=given.shards,
            when_dead=given.when_dead,
        )
        _say(
            f"seed {seed}, {options.nodes} nodes, {options.seconds:g} s, lease {options.lease:g} s, "
            f"{options.exclusion}, faults {','.join(sorted(options.faults))}"
        )
        report = run(options, _say)
        sides = compare(given.jobs, given.kills, seed, options.lease) if given.compare_celery else ()
    except LowkiqError as error:
        _say(f"error: {error}")
        return 2
    print(as_json(report, seed, sides) if given.json else as_text(report, sides))
    return 0 if report.passed and not any(side.lost for side in sides if side.ordered) else 1


def as_text(report: Report, sides: Sequence[Side] = ()) -> str:
    """A line for each figure, each gate, and each side that was compared."""
    lines = [f"{name:28} {_text(figure)}" for name, figure in report.figures.items()]
    for gate in report.gates:
        figure = "-" if gate.figure is None else f"{gate.figure:.4g}"
        lines.append(
            f"{'ok  ' if gate.passed else 'FAIL'} {gate.name:28} {figure} (at most {gate.limit:.4g})"
        )
        lines += [f"       {example}" for example in gate.examples]
    lines += [
        f"{s.name:28} {s.jobs} jobs, {s.kills} kills: {s.lost} lost, {s.doubled} doubled, {s.seconds:.0f} s"
        for s in sides
    ]
    return "\n".join(lines)


def _text(figure: Any) -> str:
    """A figure; of a list, also what is in it, as far as it is short."""
    if not isinstance(figure, list):
        return str(figure)
    more = ["..."] if len(figure) > EXAMPLES else []
    return f"{len(figure)} {'; '.join([*figure[:EXAMPLES], *more])}".strip()


def as_json(report: Report, seed: int, sides: Sequence[Side] = ()) -> str:
    """The report as one JSON object; a time without end is null."""
    gates = [{**asdict(gate), "figure": _finite(gate.figure), "passed": gate.passed} for gate in report.gates]
    compared = [asdict(side) for side in sides]
    figures = {"figures": report.figures, "gates": gates, "compared": compared}
    return json.dumps({"seed": seed, "passed": report.passed, **figures})


def _finite(figure: float | None) -> float | None:
    return figure if figure is not None and math.isfinite(figure) else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="worker processes (4)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are made (60)")
    parser.add_argument("--cluster", action="store_true", help="a cluster: three masters, three replicas")
    parser.add_argument("--lease", type=float, help="lease time in s (1; 5 on a cluster)")
    parser.add_argument(
        "--pause", type=float, help="average time between two faults in s (0.4; 2 on a cluster)"
    )
    parser.add_argument("--seed", type=int, help="repeats the faults of a run; drawn when left out")
    parser.add_argument("--exclusion", choices=EXCLUSIONS, default=EXCLUSIONS[0])
    parser.add_argument(
        "--faults",
        help=f"any of {','.join(FAULTS)}; default {','.join(n for n in FAULTS if n in DEFAULT_FAULTS)}. On a "
        f"cluster any of {','.join(sorted(OF_A_CLUSTER))},kill,freeze,cut,rebalance,reshard; default all",
    )
    parser.add_argument("--shards", type=int, default=12, help="shards of the queue (12)")
    parser.add_argument("--redis", metavar="URL", help="your Redis, in place of one of its own")
    parser.add_argument("--async", action="store_true", dest="awaits", help="the task is an async def")
    parser.add_argument(
        "--when-dead", choices=("go_on", "hold"), default="go_on", help="hold: some payloads die"
    )
    parser.add_argument("--compare-celery", action="store_true", help="plain Celery's losses beside ours")
    parser.add_argument("--jobs", type=int, default=2000, help="jobs of the comparison (2000)")
    parser.add_argument("--kills", type=int, default=10, help="kills of the comparison (10)")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
