"""Health check of the runs: those that take too long, and the jobs that wait behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .findings import WARNING, Finding
from .models import ShardRef
from .overdue import overdue_line
from .reports import NodeReport


def check_runs(nodes: Sequence[NodeReport], due: Mapping[ShardRef, int]) -> Iterator[Finding]:
    """Yield a finding about each overdue run; ``due``: number of due jobs of each shard."""
    for node in nodes:
        for lane in node.lanes if node.alive else ():
            run = lane.running
            if run is not None and run.overdue:
                waiting = sum(due.get(shard, 0) for shard in lane.shards)
                line = overdue_line(lane.name, run, waiting, run.seconds + node.silent)
                yield Finding(WARNING, f"node {node.name}", f"{line}.", _advice(node))


def _advice(node: NodeReport) -> str:
    return (
        f"On its machine, kill -TTIN {node.pid} writes to the worker's log what each thread does. A thread "
        "cannot be ended from outside: give network calls a timeout, or the task run_in='process' and "
        "time_limit. A run that may take this long needs max_run."
    )
