"""The longest script of each operation on one id with very many payloads: how long others wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from celery_lowkiq.rules.models import Call, Disposition, Job, Lease, PayloadRemoval, Settlement

from ..bench import Bench
from ..row import Row, Target
from .size import acquire_all

ID = "long"
#: Of each operation the best round counts: what else the machine does lengthens a script, too.
ROUNDS = 3
_requests = count(1)


def long_id(bench: Bench) -> Iterator[Row]:
    payloads = bench.count(100_000, 20_000)
    longest: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, seconds in _round(bench, payloads):
            longest[name] = min(longest.get(name, seconds), seconds)
    slowest = sorted(longest.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {took * 1000:.1f}" for name, took in slowest[:6])
    yield Row(
        "long-id",
        f"longest script on an id with {payloads:,} payloads ({shown})",
        "ms",
        slowest[0][1] * 1000,
        targets=(Target(20.0),),
    )


def _round(bench: Bench, payloads: int) -> Iterator[tuple[str, float]]:
    """Each operation with the time of its longest script (s)."""
    bench.empty()
    queue, spec = bench.app.tasks["single"].ordered_queue, bench.spec("single")
    lines: list[bytes] = []
    yield "push", bench.longest_script(lambda: _fill(bench, payloads))
    (lease,) = acquire_all(bench, spec)
    for disposition in (Disposition.RETRY, Disposition.DIE, Disposition.BURY):
        yield from _ended(bench, lease, disposition)
    bad = tuple(PayloadRemoval(position, b"bad") for position in range(1000))
    yield from _ended(bench, lease, Disposition.DONE, bad)
    _claim(bench, lease)
    yield "takeover", bench.longest_script(lambda: acquire_all(bench, spec))
    operations: dict[str, Callable[[], Any]] = {
        "dump": lambda: lines.extend(queue.dump()),
        "bury": lambda: queue.bury([ID]),
        "requeue": lambda: queue.requeue([ID]),
        "delete": lambda: queue.delete([ID]),
        "load": lambda: queue.load(lines),
        "bury again": lambda: queue.bury([ID]),
        "morgue delete": lambda: queue.delete_dead([ID]),
    }
    for name, act in operations.items():
        yield name, bench.longest_script(act)


def _fill(bench: Bench, payloads: int) -> None:
    for start in range(0, payloads, 5000):
        jobs = [Call(ID, b'{"v":%d}' % n) for n in range(start, min(start + 5000, payloads))]
        bench.store.push(bench.spec("single"), jobs)


def _claim(bench: Bench, lease: Lease) -> Job:
    (job,) = bench.store.claim(bench.spec("single"), lease, next(_requests)).jobs
    return job


def _ended(
    bench: Bench, lease: Lease, disposition: Disposition, bad: tuple[PayloadRemoval, ...] = ()
) -> Iterator[tuple[str, float]]:
    found: list[Job] = []
    yield "claim", bench.longest_script(lambda: found.append(_claim(bench, lease)))
    verdict = Settlement(ID, found[0].claim, disposition, 0, 0.0, b"boom", bad=bad)
    name = "settle bad" if bad else f"settle {disposition.value}"
    yield name, bench.longest_script(lambda: bench.store.settle(bench.spec("single"), lease, [verdict]))
