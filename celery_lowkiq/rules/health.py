"""Health: checks of queues, runs and shards, and what to do about a finding."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import NamedTuple

from celery_lowkiq.rules.errors import AccessDenied, ConfigurationError, LoginRefused, StoreError
from celery_lowkiq.rules.models import MAX_SHARDS, ShardRef
from celery_lowkiq.rules.repairs import Damage
from celery_lowkiq.rules.shares import ORPHAN_TIMEOUT_LEASES
from celery_lowkiq.rules.text import count_of, duration, format_job_ids, listed, ranges, shard_names, since
from celery_lowkiq.rules.topology import Topology, check_topology
from celery_lowkiq.rules.views import (
    DAY,
    ERROR,
    LISTED,
    OK,
    WARNING,
    Finding,
    LaneReport,
    NodeReport,
    Paused,
    Running,
    Sample,
    ShardReport,
    Stats,
    counted,
    seconds_to_wait,
)

# Overdue runs: those that take longer than ``max_run``, or without it, far longer than is usual.

#: Without ``max_run``, a run is overdue after this many times the usual, and after SHORTEST s at least.
OVERDUE_TIMES_USUAL = 10.0
SHORTEST = 60.0


def overdue_after(max_run: float | None, usual: float | None) -> float:
    """Return the seconds after which a run is overdue; ``usual``: of the queue's runs, None: not known."""
    return max(SHORTEST, OVERDUE_TIMES_USUAL * (usual or 0.0)) if max_run is None else max_run


def usual_run(means: Iterable[float | None]) -> float | None:
    """Return the usual seconds of a queue's runs from the mean of each lane; None while no lane has one.

    The median: one lane that has just had a run that hung must not make the next one look usual.
    """
    return median_low(known) if (known := [mean for mean in means if mean is not None]) else None


def overdue_line(lane: str, run: Running, waiting: int | None, seconds: float | None = None) -> str:
    """Return the line about an overdue run; ``waiting``: due jobs that wait behind it, None: not known.

    ``seconds``: its duration by now, if that is not the one in the report.
    """
    jobs = f"{format_job_ids(run.ids, run.count)} of {run.shard.queue}"
    took = duration(run.seconds if seconds is None else seconds)
    behind = (
        f", {count_of(waiting, 'job')} {'waits' if waiting == 1 else 'wait'} behind it" if waiting else ""
    )
    return f"{lane} has run {jobs} for {took}, {expected(run)}{behind}"


def expected(run: Running) -> str:
    """Return what was expected of an overdue run: ``usual is 0.2 s``."""
    if run.max_run is not None:
        return f"max_run is {duration(run.max_run)}"
    if run.usual is None:
        return "no other run of its queue has ended on this node"
    short = f"{1000 * run.usual:.0f} ms" if run.usual < 0.1 else duration(run.usual)
    return f"usual is {short}"


# Health check of the runs: those that take too long, and the jobs that wait behind them.


def check_runs(nodes: Sequence[NodeReport], due: Mapping[ShardRef, int]) -> Iterator[Finding]:
    """Yield a finding about each overdue run; ``due``: number of due jobs of each shard."""
    for node in nodes:
        for lane in node.lanes if node.alive else ():
            run = lane.running
            if run is not None and run.overdue:
                waiting = sum(due.get(shard, 0) for shard in lane.shards)
                line = overdue_line(lane.name, run, waiting, run.seconds + node.silent)
                advice = (
                    f"On its machine, kill -TTIN {node.pid} writes to the worker's log what each thread "
                    "does. A thread cannot be ended from outside: give network calls a timeout, or the task "
                    "run_in='process' and time_limit. A run that may take this long needs max_run."
                )
                yield Finding(WARNING, f"node {node.name}", f"{line}.", advice)


# Health check of the lag: queues whose jobs are later than usual, with the cause and the time to drain.

#: Lag (s) from which a queue is late, if it is beyond this many times the usual.
LATE_LAG = 60.0
LATE_TIMES_USUAL = 2.0


class Lateness(NamedTuple):
    """Lag of a queue, with its cause and advice."""

    text: str
    advice: str


def usual_lag(day: Sequence[Sample], until: float) -> float | None:
    """Return the median lag (s) of a day's samples before a Unix time; None without any."""
    before = [sample.lag for sample in day if sample.at < until]
    return median(before) if before else None


def is_late(lag: float, usual: float | None) -> bool:
    """True if a lag (s) is beyond what is usual."""
    return lag >= LATE_LAG and lag > LATE_TIMES_USUAL * (usual or 0.0)


def lateness(
    queue: str,
    shards: Sequence[ShardReport],
    day: Sequence[Sample],
    now: float,
    nodes: Sequence[NodeReport],
    lags: Mapping[ShardRef, float],
    limited: bool,
) -> Lateness | None:
    """Return what is late in a queue; None when nothing is, or when its late shards have no living owner.

    ``day``: samples of its last day until ``now`` (Unix s); ``lags``: of the shards of all queues;
    ``limited``: by a rate limit.
    """
    owned = [shard for shard in shards if shard.alive]
    worst = max(owned, key=lambda shard: shard.stats.lag, default=None)
    if worst is None:
        return None
    # Samples since the late job was due contain its lag: they are not usual.
    usual = usual_lag(day, now - worst.stats.lag - DAY.step)
    if not is_late(worst.stats.lag, usual):
        return None
    text = f"Jobs are {duration(worst.stats.lag)} late"
    if usual is not None:
        text += f", usual is {duration(usual)}"
    cause, advice = _cause(queue, worst, nodes, lags, limited)
    return Lateness(f"{text}: {cause}. {_drain(owned)}", advice)


def _cause(
    queue: str, worst: ShardReport, nodes: Sequence[NodeReport], lags: Mapping[ShardRef, float], limited: bool
) -> tuple[str, str]:
    """The cause of the lag of a shard, and advice."""
    lane = _lane_of(worst, nodes)
    run = lane.running if lane is not None else None
    place = f"{worst.lane or 'a lane'} of {worst.owner}"
    if run is not None and run.overdue:
        return f"{place} has run {format_job_ids(run.ids, run.count)} of {run.shard.queue} for too long", (
            "See the run above: the shards of its lane wait for its end."
        )
    if limited:
        return "a rate limit applies", "See how many jobs a second rate_limit and the limits of groups allow."
    first = max(lane.shards, key=lambda shard: lags.get(shard, 0.0), default=None) if lane else None
    other = f"{place} works {{}} first"
    advice = (
        "Give {} workers of its own (-Q, -X), so that no lane has both, or share the lanes by weight "
        "(lowkiq_queue_weights)."
    )
    if first is not None and first.queue != queue and lags.get(first, 0.0) > worst.stats.lag:
        late = duration(lags[first])
        return f"{other.format(first.queue)}, whose jobs are {late} late", advice.format(first.queue)
    if run is not None and run.shard.queue != queue:
        return other.format(run.shard.queue), advice.format(run.shard.queue)
    jobs = counted(worst.stats.due, "due job", "due jobs")
    return (
        f"{place} has {jobs} of shard {worst.index}",
        "Start another worker, or give it more lanes (-c); see the advice about shards, if there is any.",
    )


def _lane_of(shard: ShardReport, nodes: Sequence[NodeReport]) -> LaneReport | None:
    lanes = (lane for node in nodes if node.alive and node.name == shard.owner for lane in node.lanes)
    return next((lane for lane in lanes if lane.name == shard.lane), None)


def _drain(shards: Sequence[ShardReport]) -> str:
    """How long the due jobs take, at the pace of the last one to two minutes."""
    due = sum(shard.stats.due for shard in shards)
    jobs = counted(due, "due job", "due jobs")
    known = [
        (s.stats.due, s.jobs_per_minute) for s in shards if s.stats.due and s.jobs_per_minute is not None
    ]
    if not known:
        return f"{jobs} wait."
    if not all(pace for _, pace in known):
        return f"{jobs} wait, and a shard of them had no job done in the last minute."
    seconds = max(60 * count / (pace or 1.0) for count, pace in known)
    pace = sum(pace or 0.0 for _, pace in known)
    return f"{jobs} drain in about {duration(seconds)} at {pace:.0f} a minute, if no more arrive."


# Shards with the most load, and whether another number of shards would help.

#: Lag (s) from which a shard is late.
LATE = 10.0
#: Seconds of history that advice about shards needs, and the load from which a lane works all the time.
LONG_RUN = 600.0
FULL = 0.9
#: Lanes with work, as a fraction of those that a new deal would use, from which that would not help.
ENOUGH = 0.8
#: Numbers from which the proposed one is taken, at the latest.
LARGEST = 4000
#: Maximum number of ids in a hint.
MAX_IDS = 3


class Hint(NamedTuple):
    """Fault of the load of shards, with advice."""

    text: str
    advice: str


def by_load(shards: Iterable[ShardReport]) -> list[ShardReport]:
    """Return the shards, those with the most load first: lag, then jobs, then jobs a minute."""

    def load(shard: ShardReport) -> tuple[float, ...]:
        return shard.stats.lag, shard.stats.length + shard.stats.busy, shard.jobs_per_minute or 0.0

    return sorted(shards, key=load, reverse=True)


def shard_hints(
    queue: str, number: int, shards: Sequence[ShardReport], nodes: Iterable[NodeReport]
) -> list[Hint]:
    """Return hints about shards that are late although their lane has worked for ten minutes.

    ``number``: of shards, without a migration. The queue must have no rate limit: that makes jobs late, too.
    Hints come from what lanes did in the long run, and name a number that depends on the numbers of shards
    and lanes alone, so that two reads in a row say the same.
    """
    serving = [node for node in nodes if node.alive and queue in node.queues]
    if not all(_known_for_long(shard, serving) for shard in shards if shard.alive):
        return []
    lanes = [lane for node in serving for lane in node.lanes]
    loads = [lane.load for lane in lanes if lane.load is not None]
    if not loads or len(loads) < len(lanes):
        return []
    crowded: list[ShardReport] = []
    alone: list[ShardReport] = []
    by_lane = _with_work(queue, shards, lanes)
    for lane, in_lane in by_lane:
        if _works(lane):
            late = [shard for shard in in_lane if _overdue(shard.stats) >= LATE]
            (crowded if _ids(in_lane) > 1 else alone).extend(late)
    hints = []
    if crowded:
        ids = sum(_ids(in_lane) for _, in_lane in by_lane)
        text = (
            f"Ids wait for each other in {_described(queue, crowded)}: in the last {duration(LONG_RUN)}, "
            f"{count_of(sum(map(_works, lanes)), 'lane')} of {len(lanes)} worked all the time, and all of "
            f"them {sum(loads) / len(loads):.0%} of it."
        )
        hints.append(Hint(text, _advice(queue, number, ids, sum(loads), len(lanes))))
    if alone:
        running = [job_id for shard in alone if shard.running for job_id in shard.running.ids]
        named = f" ({listed(running, MAX_IDS)})" if running else ""
        text = f"Calls wait for the run of their own id{named} in {_described(queue, alone)}."
        advice = (
            "More shards do not help: runs of an id never overlap. Make its runs shorter, or its calls fewer."
        )
        hints.append(Hint(text, advice))
    return hints


def _known_for_long(shard: ShardReport, nodes: Iterable[NodeReport]) -> bool:
    """True if its owner has had it for as long as the load of lanes is measured: a move takes shards anew."""
    now = max((node.seen_at + node.silent for node in nodes), default=0.0)
    return shard.since is None or now - shard.since >= LONG_RUN


def _works(lane: LaneReport) -> bool:
    """True if it has worked all the time in the long run, and not on one run that is overdue."""
    return (lane.load or 0.0) >= FULL and not (lane.running and lane.running.overdue)


def _with_work(
    queue: str, shards: Iterable[ShardReport], lanes: Sequence[LaneReport]
) -> list[tuple[LaneReport, list[ShardReport]]]:
    """The lanes that have shards with due or running jobs, and these shards."""
    lane_of = {shard: number for number, lane in enumerate(lanes) for shard in lane.shards}
    found: dict[int, list[ShardReport]] = defaultdict(list)
    for shard in shards:
        if shard.alive and shard.paused_since is None and (shard.stats.busy or shard.stats.lag):
            number = lane_of.get(ShardRef(queue, shard.index))
            if number is not None:
                found[number].append(shard)
    return [(lanes[number], in_lane) for number, in_lane in found.items()]


def _overdue(stats: Stats) -> float:
    """How long a job waits for another one, or for the run of its own id."""
    return stats.lag or (0.0 if stats.paused_jobs else stats.oldest)


def _ids(shards: Iterable[ShardReport]) -> int:
    """The least number of ids that are due or run; one that runs may be due again."""
    return sum(max(s.stats.due, s.stats.busy + (s.stats.lag > 0)) for s in shards)


def _described(queue: str, shards: Sequence[ShardReport]) -> str:
    overdue = max(_overdue(shard.stats) for shard in shards)
    return f"{shard_names(ShardRef(queue, shard.index) for shard in shards)}, for up to {duration(overdue)}"


def _advice(queue: str, number: int, ids: int, used: float, lanes: int) -> str:
    """``used``: the sum of the loads of lanes. If ids are dealt to all lanes anew, some meet by chance."""
    expected = lanes * (1 - (1 - 1 / lanes) ** ids)
    if used >= ENOUGH * expected:
        return "More shards would not help: start more workers, or give them more lanes (-c)."
    command = f"celery -A proj lowkiq reshard {queue} {_proposed(number, lanes)}"
    return f"Another number of shards would use more lanes: {command}"


def _proposed(number: int, lanes: int) -> int:
    """A prime, twice the number of shards and of lanes or more.

    Lanes get shards in turn. So if both numbers of shards were multiples of the lanes, each id would stay in
    its lane.
    """
    numbers = range(min(2 * max(number, lanes), LARGEST), MAX_SHARDS + 1)
    return next(n for n in numbers if n != number and all(n % divisor for divisor in range(2, min(n, 64))))


# Health checks for ``doctor``: each one reads the facts, and returns a finding with advice.

_IN_URL = "write user:password@ before the host, and percent-encode what is no letter or digit (@ is %40)"
#: The settings that may have user and password, and how to write them there.
LOGINS = {
    "lowkiq_url": _IN_URL,
    "broker_url": f"{_IN_URL}, or set lowkiq_url",
    "lowkiq_redis_options": "its username and password replace those of the URL",
}


@dataclass(frozen=True)
class QueueState:
    """A queue as the code declares it, and as it is stored; None: it was never stored."""

    name: str
    declared: int
    stored: int | None
    #: None: the queue is not stored; "": it is stored without a format.
    format: str | None
    shards: tuple[ShardReport, ...] = ()
    paused: Paused = field(default_factory=lambda: Paused(None, {}, 0))
    damages: tuple[Damage, ...] = ()
    #: Number of shards before the migration that is going on.
    former: int | None = None
    #: True if the migration is paused.
    migration_paused: bool = False
    #: True if a rate limit applies.
    limited: bool = False
    #: Samples of the last day.
    day: tuple[Sample, ...] = ()
    #: Poison pills among its dead jobs.
    poison_pills: int = 0
    #: Why the rest could not be read.
    unread: str | None = None
    #: The clock (Unix s) of the master with the queue's own keys, and those of the masters with its shards,
    #: by index. They may differ, so a time is compared with the clock that it came from.
    now: float = 0.0
    clocks: Mapping[int, float] = field(default_factory=dict)

    @property
    def stats(self) -> Stats:
        """The counts of all shards."""
        return sum((shard.stats for shard in self.shards), Stats())

    @property
    def length(self) -> int:
        """Number of waiting jobs."""
        return self.stats.length

    @property
    def is_unused(self) -> bool:
        """True if no call was stored and no worker has served it yet, as before the first deployment."""
        return self.stored is None and not (self.length or self.damages or self.unread)

    def finding(self, level: str, text: str, advice: str = "") -> Finding:
        return Finding(level, f"queue {self.name}", text, advice)


@dataclass(frozen=True)
class SystemState:
    """The facts to check. ``format``: the one that this release reads."""

    format: str
    topology: Topology
    nodes: Sequence[NodeReport] = ()
    queues: Sequence[QueueState] = ()

    def serving(self, queue: str) -> list[NodeReport]:
        """Return the living nodes that serve a queue."""
        return [node for node in self.nodes if node.alive and queue in node.queues]

    @property
    def due(self) -> dict[ShardRef, int]:
        """The number of due jobs of each shard."""
        return {shard: stats.due for shard, stats in self._stats.items()}

    @property
    def lags(self) -> dict[ShardRef, float]:
        """The lag (s) of each shard."""
        return {shard: stats.lag for shard, stats in self._stats.items()}

    @property
    def _stats(self) -> dict[ShardRef, Stats]:
        return {ShardRef(q.name, shard.index): shard.stats for q in self.queues for shard in q.shards}


def check_health(state: SystemState) -> tuple[Finding, ...]:
    """Return the findings about runs, then those about the masters, the nodes, and each queue."""
    return (*check_runs(state.nodes, state.due), reachable(state.topology), *_findings(state))


def unreachable(error: StoreError, login: str) -> Finding:
    """Return the only finding when Redis cannot be used; ``login``: the setting that has the password."""
    if isinstance(error, LoginRefused):
        advice = (
            f"The server is up. This app logs in with what {login} says: {LOGINS[login]}. On the server, "
            "`redis-cli --user USER --askpass PING` tells whether it accepts them (user `default` without a "
            "name), and ACL GETUSER USER whether that user is on. Then restart what uses the setting."
        )
    elif isinstance(error, AccessDenied):
        advice = "The server is up and accepts the login. Look again when the user has these rights."
    elif isinstance(error, ConfigurationError):
        advice = ""  # The text says what to set.
    elif "no master has a slot" in str(error):
        advice = (
            "A new cluster has no slots before `redis-cli --cluster create HOST:PORT ... --cluster-replicas "
            "N`, with the addresses of all nodes. Of an older one, `redis-cli --cluster check HOST:PORT` "
            "tells more."
        )
    elif "no sentinel answers" in str(error):
        advice = "Are they up, and are their hosts and ports in the URL right? Then TLS, and network."
    elif "No master found for" in str(error):
        advice = (
            "Is this the name of the master? `redis-cli -h HOST -p 26379 SENTINEL MASTERS` shows the names "
            "that a sentinel knows, and whether it sees the master. ?master_name=NAME ends the URL."
        )
    elif any(text in str(error) for text in ("Connection closed by server", "Connection reset by peer")):
        advice = (
            "Is the server up? If so, this may be a port with TLS: the URL begins with rediss:// then (a "
            "cluster's with rediss+cluster://; for sentinels, set ssl in sentinel_kwargs)."
        )
    else:
        advice = "Is the server up, and is lowkiq_url (or broker_url) right? Then TLS, and network."
    return Finding(ERROR, "connection", str(error), advice)


def reachable(topology: Topology) -> Finding:
    """Return the finding that Redis answers, with the places of masters behind sentinels."""
    places = [f" {master.address} is {master.place}." for master in topology.masters if master.place]
    return Finding(OK, "connection", f"Redis answers.{''.join(places)}")


def unreadable(reason: str) -> Finding:
    """Return the finding in place of those about nodes and queues, which one master does not tell."""
    return Finding(ERROR, "nodes and queues", reason, "See the findings above, and look again.")


def _findings(state: SystemState) -> Iterator[Finding]:
    yield from check_topology(state.topology)
    yield from _nodes(state)
    for queue in state.queues:
        # In another format, or with a part unreachable, the other checks would only report the consequences.
        found = [*_unread(queue), *_format(queue, state.format)] or [
            *_damaged(queue),
            *_unserved(queue, state),
            *_unowned(queue, state),
            *_waiting(queue, state),
            *_abandoned(queue),
            *_paused(queue),
            *_held(queue),
            *_backlog(queue),
            *_shard_count(queue),
            *_late(queue, state),
            *_load(queue, state.nodes),
            *_dead(queue),
        ]
        served = counted(queue.stored or queue.declared, "shard is served", "shards are served")
        text = f"{_wait(queue)}, {served}"
        if queue.is_unused and not state.serving(queue.name):
            text = "It is new: no call is stored, and no worker has served it yet."
        yield from found or [queue.finding(OK, text)]


# -- nodes


def _nodes(state: SystemState) -> Iterator[Finding]:
    at_work = [node.name for node in state.nodes if node.alive and not node.quiet]
    if at_work:
        yield Finding(OK, "nodes", f"{len(at_work)} at work: {listed(at_work, LISTED)}")
    for node in state.nodes:
        subject = f"node {node.name}"
        if not node.alive:
            text = f"It was last heard of {duration(node.silent)} ago, and did not say that it stops."
            yield Finding(WARNING, subject, text, "See its log. Others recover what it ran.")
        elif node.quiet:
            advice = f"celery control -d {node.name} lowkiq_unquiet, when it is to work again."
            yield Finding(WARNING, subject, "It is quiet: it starts no run of ordered queues.", advice)


# -- queues


def _unread(queue: QueueState) -> Iterator[Finding]:
    if queue.unread is not None:
        yield queue.finding(ERROR, queue.unread, "Its other shards are not affected. See the masters above.")


def _format(queue: QueueState, reads: str) -> Iterator[Finding]:
    if queue.format is not None and queue.format != reads:
        advice = (
            "Drain it with the release that wrote it, or start on an empty key prefix (docs/upgrading.md)."
        )
        written = f"in format {queue.format}" if queue.format else "without the number of its format"
        yield queue.finding(ERROR, f"It is stored {written}; this release reads format {reads} only.", advice)


def _shard_count(queue: QueueState) -> Iterator[Finding]:
    if queue.former is not None:
        text = f"It is moving from {queue.former} to {queue.stored} shards"
        command = f"celery -A proj lowkiq reshard {queue.name}"
        if queue.migration_paused:
            yield queue.finding(
                WARNING, f"{text}, and the move is paused.", f"Resume it: {command} --resume."
            )
        else:
            yield queue.finding(WARNING, f"{text}.", f"{command} --watch waits for the end.")
    elif queue.stored not in (None, queue.declared):
        text = f"It has {queue.stored} shards, the code declares {queue.declared}; the stored number applies."
        advice = (
            f"Deploy shards={queue.stored}, or change it: "
            f"celery -A proj lowkiq reshard {queue.name} {queue.declared}."
        )
        yield queue.finding(WARNING, text, advice)


def _load(queue: QueueState, nodes: Sequence[NodeReport]) -> Iterator[Finding]:
    if queue.stored and queue.former is None and not queue.limited:
        for hint in shard_hints(queue.name, queue.stored, queue.shards, nodes):
            yield queue.finding(WARNING, *hint)


def _late(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    found = lateness(queue.name, queue.shards, queue.day, queue.now, state.nodes, state.lags, queue.limited)
    if found is not None and queue.former is None:
        yield queue.finding(WARNING, *found)


def _dead(queue: QueueState) -> Iterator[Finding]:
    if dead := sum(shard.stats.morgue_length for shard in queue.shards):
        text = counted(dead, "job is dead", "jobs are dead")
        if queue.poison_pills:
            pills = counted(queue.poison_pills, "is a poison pill", "are poison pills")
            text = f"{text}, and {pills}: a process died each time it ran alone"
        advice = (
            f"celery -A proj lowkiq failures {queue.name} groups them by error. When the cause is mended, "
            f"celery -A proj lowkiq requeue {queue.name} --all, or delete what is not needed."
        )
        yield queue.finding(WARNING, f"{text}.", advice)


def _damaged(queue: QueueState) -> Iterator[Finding]:
    if queue.damages:
        texts = [f"{damage.shard or queue.name}: {damage.text}" for damage in queue.damages[:LISTED]]
        more = len(queue.damages) - len(texts)
        text = "It is damaged: " + "; ".join(texts) + (f"; and {more} more" if more else "")
        advice = f"celery -A proj lowkiq repair {queue.name} shows what it would do, and does it with --yes."
        yield queue.finding(ERROR, text + ".", advice)


def _unserved(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    if not (state.serving(queue.name) or queue.is_unused):
        level = ERROR if queue.length else WARNING
        advice = (
            "Start a worker with -P threads or prefork whose -Q and -X do not exclude this queue, or end the "
            "quiet of one: celery -A proj lowkiq unquiet NODE."
        )
        text = "No worker serves it"
        if state.topology.lacks_replicas:
            text = f"{text}, or its report is not stored because a master refuses writes"
            advice = f"See the refused writes above. When no worker runs: {advice[0].lower()}{advice[1:]}"
        yield queue.finding(level, f"{text}; {_wait(queue)}.", advice)


def _unowned(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    """Shards without an owner for longer than a takeover takes, which no serving node waits for."""
    serving = state.serving(queue.name)
    if not serving:
        return
    patience = ORPHAN_TIMEOUT_LEASES * max(node.lease_seconds for node in serving)
    served_for = max(node.seen_at + node.silent - node.started_at for node in serving)
    free = [
        shard
        for shard in queue.shards
        if shard.alive is False
        and min(served_for, _free_for(shard, queue)) > patience
        and _seconds_left(queue, shard, serving) is None
    ]
    if free:
        text = f"No node takes {_shards(free)}, though nodes serve the queue."
        advice = "See the workers' logs. With a lowkiq_splitter of your own: does it leave one out?"
        yield queue.finding(ERROR, text, advice)


def _waiting(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    """Shards without an owner, while a former lease runs out that Redis no longer knows."""
    serving = state.serving(queue.name)
    seconds_left = ((shard.index, _seconds_left(queue, shard, serving)) for shard in queue.shards)
    left = {index: seconds for index, seconds in seconds_left if seconds is not None}
    if left:
        word = "Shard" if len(left) == 1 else "Shards"
        text = (
            f"{word} {ranges(sorted(left))}: Redis restarted, failed over or lost data; free in "
            f"{duration(max(left.values()))}."
        )
        yield queue.finding(WARNING, text, "Wait for it: a former owner may still work on them.")


def _seconds_left(queue: QueueState, shard: ShardReport, serving: Sequence[NodeReport]) -> float | None:
    """Seconds until a node may take a shard without an owner; None when no node waits for it."""
    if shard.owner is not None:
        return None
    return seconds_to_wait(serving, ShardRef(queue.name, shard.index))


def _free_for(shard: ShardReport, queue: QueueState) -> float:
    """Seconds for which no node has worked on the shard; 0 when its master became unreachable meanwhile."""
    if shard.owner is not None:
        return math.inf if shard.silent is None else shard.silent
    return _age(shard.index, shard.since or 0.0, queue)


def _age(shard: int, at: float, queue: QueueState) -> float:
    """Seconds since a time that came from a shard's master; 0 when that became unreachable meanwhile."""
    return queue.clocks.get(shard, at) - at


def _abandoned(queue: QueueState) -> Iterator[Finding]:
    left = [shard for shard in queue.shards if shard.stats.busy and shard.alive is False]
    if left:
        owners = listed(sorted({shard.owner or "none" for shard in left}), LISTED)
        jobs = counted(sum(shard.stats.busy for shard in left), "job is", "jobs are")
        text = f"{jobs} in processing in {_shards(left)} without a living owner ({owners})."
        advice = "The next owner of the shards recovers them; that needs a worker that serves the queue."
        yield queue.finding(WARNING, text, advice)


def _paused(queue: QueueState) -> Iterator[Finding]:
    paused, advice = queue.paused, "Resume it when it is to run again."
    if paused.queue is not None:
        yield queue.finding(WARNING, f"It has been paused {since(paused.queue, queue.now)}.", advice)
    if paused.shards:
        names = listed([str(index) for index in paused.shards], LISTED)
        age, at = max((_age(index, at, queue), at) for index, at in paused.shards.items())
        first = since(at, at + age)
        yield queue.finding(WARNING, f"Shards paused by themselves: {names}, the first {first}.", advice)
    if paused.ids:
        yield queue.finding(WARNING, f"{counted(paused.ids, 'id is', 'ids are')} paused.", advice)


def _held(queue: QueueState) -> Iterator[Finding]:
    stats = queue.stats
    if stats.held:
        count = counted(stats.held, "id is held by a dead payload", "ids are held by dead payloads")
        text = f"{count}, the first for {duration(stats.held_for)}."
        advice = f"celery -A proj lowkiq held {queue.name} lists them: requeue, or let them go on."
        yield queue.finding(WARNING, text, advice)


def _backlog(queue: QueueState) -> Iterator[Finding]:
    stats = queue.stats
    if stats.backlog:
        ids = listed([f"{found.calls:,} of id {found.id}" for found in stats.backlog], LISTED)
        text = f"Of {stats.calls:,} waiting calls, the oldest for {duration(stats.oldest_call)}, {ids} wait."
        advice = (
            "Runs of one id follow each other, so more shards or workers do not help. "
            f"celery -A proj lowkiq why {queue.name} {stats.backlog[0].id} says what it waits for. Shorter "
            "runs help, finer ids, and with by= latest=True, which runs the newest call only."
        )
        yield queue.finding(WARNING, text, advice)


def _wait(queue: QueueState) -> str:
    stats = queue.stats
    calls = f" with {stats.calls} calls" if stats.calls > stats.length else ""
    return counted(stats.length, f"job{calls} waits", f"jobs{calls} wait")


def _shards(shards: Sequence[ShardReport]) -> str:
    word = "shard" if len(shards) == 1 else "shards"
    return f"{word} {listed([str(shard.index) for shard in shards], LISTED)}"
