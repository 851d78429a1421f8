"""Health checks for ``doctor``: each one reads the facts, and returns a finding with advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .balance import ORPHAN_TIMEOUT_LEASES
from .errors import AccessDenied, ConfigurationError, LoginRefused, StoreError
from .findings import ERROR, LISTED, OK, WARNING, Finding, counted
from .history import Sample
from .lateness import lateness
from .models import ShardRef
from .repairs import Damage
from .reports import NodeReport, ShardReport, seconds_to_wait
from .run_findings import check_runs
from .shard_hints import shard_hints
from .text import duration, listed, ranges, since
from .topology import Topology, check_topology
from .views import Paused, Stats

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
    #: Whether that is paused.
    migration_paused: bool = False
    #: Whether a rate limit applies.
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
        """Whether no call was stored and no worker has served it yet, as before the first deployment."""
        return self.stored is None and not (self.length or self.damages or self.unread)

    def finding(self, level: str, text: str, advice: str = "") -> Finding:
        """Return a finding about this queue."""
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
        # Of a queue in another format, or a part that is away, the other checks would only follow from that.
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
            text = f"{text}, or its report is not stored, since a master refuses writes"
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
        advice = "See the workers' logs. With lowkiq_splitter='by_node': do the node numbers leave one out?"
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
    """Seconds for which no node has worked on the shard; 0 when its master went away meanwhile."""
    if shard.owner is not None:
        return math.inf if shard.silent is None else shard.silent
    return _age(shard.index, shard.since or 0.0, queue)


def _age(shard: int, at: float, queue: QueueState) -> float:
    """Seconds since a time that came from a shard's master; 0 when that went away meanwhile."""
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
