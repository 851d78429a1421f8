"""A whole run: set up, faults while a producer pushes, drain, and the history of it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from celery_lowkiq.rules.errors import StoreError

from .app import Stage, add_task, make_app, mended
from .checker import Report, check
from .faults import Faults
from .history import Drain, History, history_of
from .journal import Journal, Reader
from .nodes import Cluster, Crew
from .options import OWN_REDIS, Options
from .pair import Pair
from .plan import plan
from .producer import Producer
from .proxy import Proxy
from .queue import Queue, wait_for
from .victim import Clock, Victim, address_of, can_set_clocks, through_proxy

#: Seconds that nodes get to start, and to share the shards again after a kill.
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

Say = Callable[[str], None]


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
    with _stage(options, directory) as (stage, proxy, victim, journal):
        app = make_app(stage)
        task = add_task(app, stage)
        queue = Queue(task)
        cluster = Cluster(_crew(options, stage, directory), journal)
        gives_up = GIVES_UP if "failover" in options.faults else 0.0
        producer = Producer(task, journal, ids=options.ids, seed=options.seed, gives_up=gives_up)
        operator = contextlib.ExitStack()
        try:
            operator.enter_context(_operator(options, stage, queue))
            cluster.resize(options.nodes)
            if wait_for(queue.shared_by(options.nodes, options.lease), START) is None:
                say(f"the nodes did not share the shards within {START:.0f} s")
            faults = Faults(cluster, queue, proxy, victim, journal, options.shards)
            producer.start()
            try:
                faults.run(plan(options.seed, options), options.seconds)
            finally:
                producer.stop()
            drain = _drain(options, cluster, queue, faults, say)
        finally:
            operator.close()
            cluster.stop()
            _clean_up(queue, stage.queue, say)
            app.close()
    return history_of(
        Reader(directory).new_lines(), lease=options.lease, strict=options.exclusion == "strict", drain=drain
    )


@contextlib.contextmanager
def _operator(options: Options, stage: Stage, queue: Queue) -> Iterator[None]:
    """Somebody who requeues what holds ids, now and then."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(REQUEUE):
            queue.requeue_held(lambda payload: mended(stage.directory, payload).touch())

    thread = threading.Thread(target=look, name="chaos-operator", daemon=True)
    if options.on_death == "hold":
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
        say(f"left out, since the Redis is yours: {', '.join(sorted(left_out))}")
    if "clock" in options.faults - left_out and not can_set_clocks():
        left_out.add("clock")
        say("left out, since it needs Linux and a C compiler: clock")
    return options.without(left_out)


@contextlib.contextmanager
def _stage(options: Options, directory: Path) -> Iterator[tuple[Stage, Proxy, Victim | None, Journal]]:
    with contextlib.ExitStack() as stack:
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
        journal = Journal(directory)
        stack.callback(journal.close)
        yield _stage_of(options, directory, url), proxy, victim, journal


def _stage_of(options: Options, directory: Path, url: str) -> Stage:
    return Stage(
        url=url,
        # A user's Redis gets nothing but our queue.
        broker=url if options.redis_url is None else "memory://",
        queue=f"chaos-{uuid.uuid4().hex[:12]}",
        directory=str(directory),
        lease=options.lease,
        shards=options.shards,
        exclusion=options.exclusion,
        awaits=options.awaits,
        durability="replicated" if "failover" in options.faults else "fast",
        on_death=options.on_death,
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
        for number in range(min(CALM_KILLS, options.nodes)):
            wait_for(queue.shared_by(options.nodes, 2 * options.lease), SHARE)
            faults.kill(number)
        wait_for(queue.shared_by(options.nodes, options.lease), SHARE)
    wait_for(queue.empty, NEVER)
    return Drain(seconds, queue.leftover())
