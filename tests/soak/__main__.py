"""``python -m tests.soak``: exit status 0 when every gate is passed, 1 when one is not."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from celery_lowkiq.rules.errors import LowkiqError
from tests.chaos.options import EXCLUSIONS
from tests.chaos.report import Gate, Report
from tests.soak.options import Options
from tests.soak.plot import draw
from tests.soak.run import judge, run
from tests.soak.samples import read


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    samples = given.to / "samples.jsonl"
    try:
        if given.judge:
            report = judge(samples)
        else:
            given.to.mkdir(parents=True, exist_ok=True)
            report = run(_options(given), samples, _say)
    except LowkiqError as error:
        _say(f"error: {error}")
        return 2
    draw(read(samples), given.to / "soak.png")
    text = as_text(report)
    (given.to / "report.txt").write_text(text + "\n")
    print(text)
    return 0 if report.passed else 1


def as_text(report: Report) -> str:
    """A line for each figure and each gate, and examples of what is wrong."""
    lines = [f"{name:50} {figure:,}" for name, figure in report.figures.items()]
    for gate in report.gates:
        figure, limit = (_shown(gate, value) for value in (gate.figure, gate.limit))
        lines.append(f"{'ok  ' if gate.passed else 'FAIL'} {gate.name:45} {figure} (at most {limit})")
        lines += [f"       {example}" for example in gate.examples]
    return "\n".join(lines)


def _shown(gate: Gate, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.2%}" if gate.name.startswith("growth") else f"{value:g}"


def _options(given: argparse.Namespace) -> Options:
    return Options(
        seconds=given.hours * 3600,
        deploy_every=given.deploy_every,
        kill_every=given.kill_every,
        rate=given.rate,
        lease=given.lease,
        exclusion=given.exclusion,
        seed=given.seed,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long, in hours (%(default)s)")
    for name, what in (
        ("deploy-every", "seconds between two deploys"),
        ("kill-every", "seconds between two kills"),
        ("rate", "calls a second"),
        ("lease", "lease time in s"),
    ):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} (%(default)g)")
    parser.add_argument("--seed", type=int, default=default.seed, help="of the producer (%(default)s)")
    parser.add_argument("--exclusion", choices=EXCLUSIONS, default=default.exclusion)
    parser.add_argument(
        "--to", type=Path, default=Path("soak"), help="directory for samples, report and plot (%(default)s)"
    )
    parser.add_argument(
        "--judge", action="store_true", help="judge and draw the samples that are there, run nothing"
    )
    return parser


if __name__ == "__main__":
    # Also then the nodes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    sys.exit(main())
