"""``python -m benchmarks``: docs/performance.md says how to read what it prints."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from celery_lowkiq.embedded import EmbeddedServer

from . import frames, plot, profile, report
from .bench import Bench
from .machine import calibrate, facts
from .row import Row
from .rows import GROUPS, LONG
from .worker import Worker, ordered


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Costs per job, beside Sidekiq's and Celery's."
    )
    parser.add_argument("--quick", action="store_true", help="fewer jobs, no long rows, no plot")
    parser.add_argument("--rows", type=_groups, help=f"some of {', '.join(GROUPS)}, with commas between")
    parser.add_argument("--redis", metavar="URL", help="an empty database of another Redis; it is emptied")
    parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help="added to each round trip")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with an earlier results file")
    parser.add_argument("--profile", action="store_true", help="only show where the time of batch1 goes")
    return parser.parse_args()


def _groups(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in GROUPS:
            raise argparse.ArgumentTypeError(f"{name!r} is no row: choose of {', '.join(GROUPS)}")
    return names


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of an empty Redis: the given one, or a new one of our own on TCP."""
    if url is None:
        with EmbeddedServer(port=0) as own:
            yield own.url
        return
    yield url


@contextlib.contextmanager
def farther(url: str, latency: float) -> Iterator[str]:
    """The URL of a proxy that adds the latency (ms): a process, so that it does not slow down our own."""
    if not latency:
        yield url
        return
    command = [sys.executable, "-m", "benchmarks.proxy", url, str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        yield proxy.stdout.readline().strip()
        proxy.stdin.close()


def connect(url: str) -> redis.Redis:
    """Raises SystemExit when the database has keys: it would be emptied."""
    client = redis.Redis.from_url(url.replace("redis+socket://", "unix://"))
    if client.dbsize():
        raise SystemExit("the Redis database is not empty: name one that the bench may empty")
    return client


def measure(bench: Bench, groups: list[str]) -> list[Row]:
    rows = []
    for name in groups:
        calibration = calibrate()
        for row in GROUPS[name](bench):
            rows.append(row.calibrated(calibration))
            print(f"{row.name:<16} {report.number(row.ours):>10} {row.unit}", file=sys.stderr, flush=True)
    return rows


def profiled(bench: Bench) -> str:
    """Where the time of a job goes in the batch-1 process row, with one lane."""
    count = bench.count(20_000, 5_000)
    bare = ordered(bench, "blank", count, lanes=1).wall
    bench.empty()
    queue = bench.spec("blank")
    bench.fill(queue, count)
    with Worker(bench, "blank", lanes=1).profiled() as worker:
        worker.until(lambda: bench.processed(queue) >= count)
    return profile.text(json.loads(worker.profile.read_text()), count, bare)


def run(bench: Bench, options: argparse.Namespace) -> None:
    groups = options.rows or [name for name in GROUPS if not (options.quick and name in LONG)]
    machine = facts(bench.direct)
    before = report.read(options.against) if options.against else []
    rows, groups_of_time = measure(bench, groups), ""
    if not (options.quick or options.rows):
        bench.curves["lanes"] = plot.by_lanes(bench)
        groups_of_time = profiled(bench)
    print(report.table(rows))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    shown = {"quick": options.quick, "latency_ms": options.latency, "own_redis": options.redis is None}
    path = report.write(rows, machine, shown, bench.curves, groups_of_time)
    if bench.curves:
        plot.draw(bench.curves, path.with_suffix(".svg"))
    print(f"written to {path}")
    if before:
        report.guard(before, rows)


def main() -> None:
    options = arguments()
    # So that workers and the server end with us, however we are asked to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        server(options.redis) as near,
        farther(near, options.latency) as url,
        tempfile.TemporaryDirectory(prefix="lowkiq-bench-") as directory,
    ):
        bench = Bench(url, connect(near), Path(directory), options.quick)
        try:
            if options.profile:
                print(profiled(bench))
            else:
                run(bench, options)
            if options.profile:
                print(frames.text(bench))
        finally:
            bench.empty()


if __name__ == "__main__":
    main()
