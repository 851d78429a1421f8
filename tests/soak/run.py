"""A whole soak run: a cluster under steady calls, deploys and kills, drained and judged."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from redis import Redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.views import HOUR, Counters
from celery_lowkiq.store.node_reports import sample_call
from tests.chaos.journal import Journal
from tests.chaos.nodes import Cluster, Crew
from tests.chaos.queue import wait_for
from tests.chaos.report import Gate, Report
from tests.soak.app import Stage, add_tasks, make_app
from tests.soak.flatness import flatness_gates
from tests.soak.ledger import NEVER, judge_ledger
from tests.soak.options import Options
from tests.soak.plan import Kill, plan
from tests.soak.samples import SampleFile, Sampler, read, resident_of

APP = "tests.soak.app"
#: Seconds between two samples, at most.
SAMPLE = 5.0
#: Seconds that nodes get to start, and to have shards.
START = 60.0
Say = Callable[[str], None]


def run(options: Options, samples: Path, say: Say) -> Report:
    """Run it, with the samples in a file, and judge it. Raises StoreError and ServerFailed."""
    directory = Path(tempfile.mkdtemp(prefix="lowkiq-soak-"))
    say(f"ledger and logs are in {directory}")
    # Without a slow log, whose entries count as memory and come with every hiccup of the machine.
    with EmbeddedServer(port=0, config={"slowlog-max-len": "0"}) as server:
        stage = Stage(
            url=server.url,
            name=f"soak{uuid.uuid4().hex[:6]}",
            directory=str(directory),
            lease=options.lease,
            exclusion=options.exclusion,
            rate=options.rate,
            seed=options.seed,
        )
        with contextlib.closing(SampleFile(samples)) as file:
            report = Soak(options, stage, file, say).main()
            file.note("figures", **report.figures)
            for gate in report.gates:
                file.note("gate", **asdict(gate))
    report = judge(samples)
    if report.passed:
        shutil.rmtree(directory)
    return report


def judge(samples: Path) -> Report:
    """The gates and figures of a run that has ended, from its samples."""
    lines = read(samples)
    options = Options(**{name: lines[0][name] for name in Options.__dataclass_fields__})
    found = [line for line in lines if line["what"] == "gate"]
    gates = [Gate(s["name"], s["figure"], s["limit"], tuple(s["examples"])) for s in found]
    within = [line for line in lines if line["at"] <= options.seconds]
    gates += flatness_gates(within, options.deploy_every, resident_of(lines))
    figures = {f"{what}s": sum(line["what"] == what for line in lines) for what in ("deploy", "kill")}
    for line in lines:
        if line["what"] == "figures":
            figures |= {name: value for name, value in line.items() if name not in ("what", "at")}
    return Report(tuple(gates), figures)


class Soak:
    """The processes of a run."""

    def __init__(self, options: Options, stage: Stage, file: SampleFile, say: Say) -> None:
        self._options = options
        self._stage = stage
        self._file = file
        self._say = say
        self._directory = Path(stage.directory)
        self._journal = Journal(self._directory)
        crew = Crew(
            APP,
            stage.name,
            self._directory,
            options.lanes,
            stage.variables(),
            strict=options.exclusion == "strict",
            log_level="WARNING",
        )
        self._cluster = Cluster(crew, self._journal)
        self._app = make_app(stage)
        self._tasks = [task for task, _ in add_tasks(self._app, stage).values()]
        self._store = context_of(self._app).store

    def main(self) -> Report:
        """The run. Returns what its ledger says."""
        self._fill_rings()
        try:
            self._cluster.resize(self._options.nodes + 1)
            for number in range(self._options.nodes + 1):
                self._wait_for_share(number)
            self._file.begin(**asdict(self._options))
            with self._calls() as producer, self._samples(producer):
                self._steps()
            drained = wait_for(self._drained, NEVER) is not None
            stats = {task.queue_spec.name: task.ordered_queue.stats() for task in self._tasks}
        finally:
            self._cluster.stop()
            self._journal.close()
            self._app.close()
        return judge_ledger(self._directory, stats, self._options.lease, drained)

    def _fill_rings(self) -> None:
        """Store samples of the last hour for each queue, so that its ring of samples is as large as ever."""
        now, names = time.time(), [task.queue_spec.name for task in self._tasks]
        samples = [
            Counters(now - ago, processed=(1000,), failed=100) for ago in range(HOUR.seconds, 0, -HOUR.step)
        ]
        self._store.client.all([sample_call([(name, sample) for name in names]) for sample in samples])

    @contextlib.contextmanager
    def _calls(self) -> Iterator[int]:
        """The producer's process, until the end of the block."""
        log = (self._directory / "producer.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.producer"],
            env={**os.environ, **self._stage.variables()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            if code := process.wait(NEVER):
                raise RuntimeError(f"the producer ended with status {code}: see {log.name}")

    @contextlib.contextmanager
    def _samples(self, producer: int) -> Iterator[None]:
        every = min(SAMPLE, self._options.deploy_every / 40)
        with Redis.from_url(self._stage.url) as redis:
            numbers = range(self._options.nodes + 1)
            sampler = Sampler(self._file, self._cluster, numbers, producer, redis, every)
            sampler.start()
            try:
                yield
            finally:
                sampler.stop()

    def _steps(self) -> None:
        """Deploy and kill until the time is over."""
        began_at = time.monotonic()
        for step in plan(self._options):
            self._rest(began_at + step.at)
            if isinstance(step, Kill):
                self._file.note("kill", node=step.node)
                self._cluster.kill(step.node)
            else:
                self._deploy()
        self._rest(began_at + self._options.seconds)

    def _rest(self, until: float) -> None:
        """Wait, and start nodes again that ended by themselves."""
        while (seconds := until - time.monotonic()) > 0:
            self._cluster.tend()
            threading.Event().wait(min(1.0, seconds))

    def _deploy(self) -> None:
        self._file.note("deploy", nodes=self._options.nodes)
        for number in range(self._options.nodes):
            before = self._owners()
            self._cluster.restart(number)
            self._wait_for_share(number, before)
        self._file.note("deployed")

    def _wait_for_share(self, number: int, before: Collection[str] = ()) -> None:
        """Wait until a node has shards; ``before``: owners of earlier processes."""
        name = self._cluster.name(number)

        def has_shards() -> bool:
            return any(owner.startswith(name) for owner in self._owners() - set(before))

        if wait_for(has_shards, START) is None:
            self._say(f"{name} has no shards after {START:.0f} s")

    def _owners(self) -> set[str]:
        shards = [shard for task in self._tasks for shard in task.queue_spec.shard_refs()]
        return {lease.owner for lease in self._store.observe(shards) if lease and lease.owner}

    def _drained(self) -> bool:
        stats = [task.ordered_queue.stats() for task in self._tasks]
        return all(one.length == one.busy == 0 for one in stats)
