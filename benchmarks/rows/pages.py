"""How long the dashboard takes to open a page of a very long queue."""

from __future__ import annotations

import time
from collections.abc import Iterator

from starlette.testclient import TestClient

from celery_lowkiq.web import make_app

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median

QUEUE = "/queue?queue=blank"
PAGES = {
    "overview": "/",
    "by due time": QUEUE,
    "the last ones": f"{QUEUE}&reverse=1",
    "from some time on": f"{QUEUE}&minimum=1000500000",
    "by id": f"{QUEUE}&by=id",
    "by a rare id": f"{QUEUE}&by=id&prefix=999999",
    "shards": f"{QUEUE}&list=shards",
    "job": "/job?queue=blank&id=500000",
}
OPENED = 9


def pages(bench: Bench) -> Iterator[Row]:
    bench.empty()
    jobs = bench.count(1_000_000, 50_000)
    queue, step = bench.spec("blank"), 50_000
    for start in range(0, jobs, step):
        bench.fill(queue, step, start=start, perform_in=1e9 + start)
    dashboard = make_app(bench.app, auth=lambda _: "bench")
    with TestClient(dashboard, base_url="http://localhost") as browser:
        costs = {name: _milliseconds(browser, path) for name, path in PAGES.items()}
    slowest = max(costs, key=lambda name: costs[name])
    shown = ", ".join(f"{name} {cost:.0f}" for name, cost in costs.items())
    yield Row(
        "pages-open",
        f"dashboard, the slowest page of a queue of {jobs:,} jobs ({shown})",
        "ms",
        costs[slowest],
        targets=(Target(300.0),),
    )


def _milliseconds(browser: TestClient, path: str) -> float:
    costs = []
    for _ in range(OPENED):
        began = time.perf_counter()
        assert browser.get(path).status_code == 200
        costs.append((time.perf_counter() - began) * 1000)
    return median(costs)
