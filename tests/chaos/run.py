"""A whole run: set up, faults while a producer pushes, drain, and the history of it."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_lowkiq.rules.errors import StoreError
from tests.chaos.app import Stage, add_task, make_app, mended
from tests.chaos.checker import check
from tests.chaos.cluster_faults import ALLOWED, ClusterFaults
from tests.chaos.faults import Faults
from tests.chaos.history import Drain, History, history_of
from tests.chaos.journal import Journal, Reader
from tests.chaos.masters import Masters
from tests.chaos.nodes import Cluster, Crew
from tests.chaos.options import OWN_REDIS, Options
from tests.chaos.pair import Pair
from tests.chaos.plan import plan
from tests.chaos.producer import Producer
from tests.chaos.proof import planned
from tests.chaos.proxy import Proxy
from tests.chaos.queue import Queue, wait_for
from tests.chaos.report import Report
from tests.chaos.victim import Clock, Victim, address_of, can_set_clocks, through_proxy

#: Seconds that nodes get to start, and to share the shards again after a kill, beside the lease's times.
START = 60.0
SHARE = 20.0
#: Seconds after which a queue that is not empty counts as never empty.
NEVER = 60.0
#: Part of the calls that are given up when they are not confirmed: a failover may lose these.
GIVES_UP = 0.5
#: Seconds between two looks for held ids.
REQUEUE = 0.5
#: Kills at the end, when nothing else is wrong, which show how long a takeover takes.
CALM_KILLS = 3

#: On a cluster, each shard has a producer of its own, so that a call waits for one master only.
CALL_OF_A_SHARD = 2
PAUSE_OF_A_SHARD = 0.1

Say = Callable[[str], None]


@dataclass
class Site:
    """Where a run takes place: the Redis or the cluster, and what may be done to it."""

    stage: Stage
    journal: Journal
    proxy: Proxy | None = None
    victim: Victim | None = None
    masters: Masters | None = None

    def faults(self, options: Options, cluster: Cluster, queue: Queue) -> Faults:
        """What makes the faults here."""
        if self.masters is not None:
            name = self.stage.queue
            return ClusterFaults(cluster, queue, self.masters, self.journal, name, options.shards)
        assert self.proxy is not None
        return Faults(cluster, queue, self.proxy, self.victim, self.journal, options.shards)


def run(options: Options, say: Say) -> Report:
    """Run it and judge it. Raises StoreError and ServerFailed when there is no Redis to begin with."""
    directory = Path(tempfile.mkdtemp(prefix="lowkiq-chaos-"))
    report = None
    try:
        report = check(_history(options, directory, say))
    finally:
        if report is not None and report.passed:
            shutil.rmtree(directory)
        else:
            say(f"ledger and logs are in {directory}")
    return report


def _history(options: Options, directory: Path, say: Say) -> History:
    options = _possible(options, say)
    for allowed in ALLOWED if options.cluster else ():
        say(f"allowed: {allowed}")
    with _site(options, directory) as site:
        stage, journal = site.stage, site.journal
        app = make_app(stage)
        task = add_task(app, stage)
        queue = Queue(task)
        cluster = Cluster(_crew(options, stage, directory), journal)
        operator = contextlib.ExitStack()
        try:
            operator.enter_context(_operator(options, stage, queue))
            cluster.resize(options.nodes)
            if wait_for(queue.shared_by(options.nodes, options.lease), START) is None:
                say(f"the nodes did not share the shards within {START:.0f} s")
            faults = site.faults(options, cluster, queue)
            with _producers(options, task, journal):
                faults.run(plan(options.seed, options), options.seconds)
            drain = _drain(options, cluster, queue, faults, say)
        finally:
            operator.close()
            cluster.stop()
            _clean_up(queue, stage.queue, say)
            app.close()
    return history_of(
        Reader(directory).new_lines(),
        lease=options.lease,
        strict=options.exclusion == "strict",
        drain=drain,
        cluster=options.cluster,
        planned=planned(options),
    )


@contextlib.contextmanager
def _producers(options: Options, task: Any, journal: Journal) -> Iterator[None]:
    gives_up = GIVES_UP if options.cluster or "failover" in options.faults else 0.0
    ids = [str(number) for number in range(options.ids)]
    if options.cluster:
        chance = random.Random(options.seed)
        by_shard: dict[int, list[str]] = {}
        for job_id in ids:
            by_shard.setdefault(task.queue_spec.shard_of(job_id).index, []).append(job_id)
        producers = [
            Producer(
                task,
                journal,
                ids=of_shard,
                seed=chance.randrange(1_000_000),
                gives_up=gives_up,
                call=CALL_OF_A_SHARD,
                pause=PAUSE_OF_A_SHARD,
            )
            for of_shard in by_shard.values()
        ]
    else:
        producers = [Producer(task, journal, ids=ids, seed=options.seed, gives_up=gives_up)]
    with contextlib.ExitStack() as stack:
        for producer in producers:
            producer.start()
            stack.callback(producer.stop)
        yield


@contextlib.contextmanager
def _operator(options: Options, stage: Stage, queue: Queue) -> Iterator[None]:
    """Somebody who requeues what holds ids, now and then."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(REQUEUE):
            queue.requeue_held(lambda payload: mended(stage.directory, payload).touch())

    thread = threading.Thread(target=look, name="chaos-operator", daemon=True)
    if options.when_dead == "hold":
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


def _clean_up(queue: Queue, name: str, say: Say) -> None:
    try:
        queue.delete()
    except StoreError as error:
        say(f"the keys of queue {name} are still in Redis: {error}")


def _possible(options: Options, say: Say) -> Options:
    """Without the faults that cannot be made here."""
    left_out = set()
    if options.redis_url is not None and options.faults & OWN_REDIS:
        left_out = set(options.faults & OWN_REDIS)
        say(f"left out, because the Redis is yours: {', '.join(sorted(left_out))}")
    if "clock" in options.faults - left_out and not can_set_clocks():
        left_out.add("clock")
        say("left out, because it needs Linux and a C compiler: clock")
    return options.without(left_out)


@contextlib.contextmanager
def _site(options: Options, directory: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        journal = Journal(directory)
        stack.callback(journal.close)
        if options.cluster:
            masters = Masters()
            stack.callback(masters.stop)
            masters.start()
            yield Site(_stage_of(options, directory, masters.url), journal, masters=masters)
            return
        victim = None
        if options.redis_url is None:
            clock = Clock(directory) if "clock" in options.faults else None
            victim = Pair(clock) if "failover" in options.faults else Victim(clock)
            stack.callback(victim.stop)
            address = victim.start()
        else:
            address = address_of(options.redis_url)
        proxy = Proxy(address)
        proxy.start()
        stack.callback(proxy.stop)
        url = through_proxy(options.redis_url, proxy.port)
        yield Site(_stage_of(options, directory, url), journal, proxy, victim)


def _stage_of(options: Options, directory: Path, url: str) -> Stage:
    return Stage(
        url=url,
        # A user's Redis gets nothing but our queue, and Celery has no broker for a cluster.
        broker=url if options.redis_url is None and not options.cluster else "memory://",
        queue=f"chaos-{uuid.uuid4().hex[:12]}",
        directory=str(directory),
        lease=options.lease,
        shards=options.shards,
        exclusion=options.exclusion,
        awaits=options.awaits,
        durability="replicated" if options.cluster or "failover" in options.faults else "fast",
        when_dead=options.when_dead,
    )


def _crew(options: Options, stage: Stage, directory: Path) -> Crew:
    strict = options.exclusion == "strict"
    return Crew(options.app, stage.queue, directory, options.lanes, stage.variables(), strict)


def _drain(options: Options, cluster: Cluster, queue: Queue, faults: Faults, say: Say) -> Drain:
    """Wait until the queue is empty, and look how long takeovers take when nothing else is wrong."""
    if "clock" in options.faults:
        say(f"jobs that waited for a time that the clock had jumped to: {queue.make_due()}")
    seconds = wait_for(queue.at_rest, NEVER)
    cluster.resize(options.nodes)
    if "kill" in options.faults:
        share = SHARE + 3 * options.lease
        for number in range(min(CALM_KILLS, options.nodes)):
            wait_for(queue.shared_by(options.nodes, 2 * options.lease), share)
            faults.kill(number, "kill at rest")
        wait_for(queue.shared_by(options.nodes, options.lease), share)
    wait_for(queue.empty, NEVER)
    return Drain(seconds, queue.leftover())
