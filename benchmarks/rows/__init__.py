"""The rows of the table, in groups that ``--rows`` chooses by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..bench import Bench
from ..row import Row
from . import (
    cluster,
    deploys,
    enqueue,
    idle,
    idle_queues,
    limits,
    long_id,
    operators,
    pages,
    process,
    resharding,
    signing,
    size,
    sleeping,
    waiting,
    ways,
)

Group = Callable[[Bench], Iterator[Row]]

GROUPS: dict[str, Group] = {
    "batch1": process.batch_1,
    "batch1-info": process.info_lines,
    "batch1-results": process.results,
    "batch100": process.batch_100,
    "events": process.events,
    "process": process.in_child,
    "bulk": enqueue.bulk,
    "delay": enqueue.delay,
    "delay-signals": enqueue.delay_with_receivers,
    "adelay": enqueue.from_asyncio,
    "memory": size.memory,
    "latency": waiting.latency,
    "lateness": waiting.lateness,
    "million": size.million,
    "payloads": size.payloads,
    "long-id": long_id.long_id,
    "idle": idle.idle,
    "idle-queues": idle_queues.idle_queues,
    "nodes": sleeping.nodes,
    "lanes": sleeping.lanes,
    "async": sleeping.bodies,
    "ways": ways.ways,
    "deploys": deploys.deploys,
    "limits": limits.limits,
    "cluster": cluster.cluster,
    "operators": operators.operators,
    "pages": pages.pages,
    "reshard": resharding.resharding,
    "reshard-many": resharding.many,
    "signing": signing.signing,
}
#: Too long for ``--quick``.
LONG = ("million", "idle", "idle-queues", "pages", "deploys", "reshard-many")
