"""Is all well? Each check looks at what was read, and says what it found and what to do about it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .balance import ORPHAN_TIMEOUT_LEASES
from .models import ShardRef
from .repairs import Damage
from .reports import NodeReport, ShardReport, seconds_to_wait
from .text import duration, ranges, since
from .views import Paused

OK, WARNING, ERROR = "ok", "warning", "error"

#: The oldest server that has all that is needed.
OLDEST = (6, 2)
#: Clocks may differ by so many s.
CLOCKS = 1.0
#: So many shards, or names, one finding lists.
LISTED = 10


@dataclass(frozen=True)
class Finding:
    """``level`` is ok, warning or error; ``advice`` is empty where there is nothing to do."""

    level: str
    subject: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Server:
    """What a Redis says of itself. None: it does not tell us."""

    name: str = "Redis"
    version: str = ""
    policy: str | None = None
    #: In bytes, 0 for no limit.
    maxmemory: int = 0
    aof: bool | None = None
    appendfsync: str | None = None
    #: Setting ``save``: empty when no snapshots are made.
    save: str | None = None
    #: What its last write to disk came to: False for a failure.
    written: bool = True
    #: Its clock minus this host's, and how exactly that is known, in s.
    ahead: float = 0.0
    give_or_take: float = 0.0


@dataclass(frozen=True)
class QueueState:
    """A queue as the code declares it, and as it is stored; None: nothing was ever stored of it."""

    name: str
    declared: int
    stored: int | None
    format: int | None
    shards: tuple[ShardReport, ...] = ()
    paused: Paused = field(default_factory=lambda: Paused(None, {}, 0))
    damages: tuple[Damage, ...] = ()

    @property
    def length(self) -> int:
        """How many jobs wait."""
        return sum(shard.stats.length for shard in self.shards)


@dataclass(frozen=True)
class SystemState:
    """All that is examined. ``now`` is Redis's clock (Unix s), ``format`` what this version reads."""

    now: float
    format: int
    server: Server
    nodes: Sequence[NodeReport] = ()
    queues: Sequence[QueueState] = ()

    def serving(self, queue: str) -> list[NodeReport]:
        """The living nodes that serve a queue."""
        return [node for node in self.nodes if node.alive and queue in node.queues]


def check_health(state: SystemState) -> tuple[Finding, ...]:
    """All findings: of the server, the nodes, and each queue."""
    return tuple(_findings(state))


def _findings(state: SystemState) -> Iterator[Finding]:
    server = state.server
    yield version(server)
    yield eviction(server)
    yield persistence(server)
    yield clock(server)
    yield from nodes(state)
    for queue in state.queues:
        # What is stored in another way cannot be served: that says it all.
        of_queue = list(stored(queue, state.format)) or [
            *damaged(queue),
            *unserved(queue, state),
            *unowned(queue, state),
            *waiting(queue, state),
            *abandoned(queue),
            *paused(queue, state.now),
        ]
        served = _counted(queue.declared, "shard is served", "shards are served")
        well = f"{_wait(queue)}, {served}"
        yield from of_queue or [Finding(OK, f"queue {queue.name}", well)]


# -- the server


def unreachable(reason: str) -> Finding:
    """Nothing else can be said then."""
    advice = (
        "Is the server up, and is lowkiq_url (or broker_url) right? Then user, password, TLS, and network."
    )
    return Finding(ERROR, "connection", reason, advice)


def version(server: Server) -> Finding:
    """Of the server."""
    known = tuple(int(part) for part in re.findall(r"\d+", server.version)[:2])
    text = f"{server.name} {server.version or 'of an unknown version'}"
    if known and known < OLDEST:
        return Finding(ERROR, "server", text, "Redis 6.2 or newer is needed, or Valkey.")
    return Finding(OK, "server", text)


def eviction(server: Server) -> Finding:
    """A full Redis has to refuse, not to throw jobs away. Policies ``volatile-*`` take only what expires: no
    job does, but what ``drop_stale`` has seen, trackers, and the tokens of rate limits do.
    """
    subject, advice = "maxmemory-policy", "Set maxmemory-policy to noeviction."
    if server.policy is None:
        text = "The server does not tell its maxmemory-policy: INFO is forbidden, or leaves it out."
        return Finding(WARNING, subject, text, f"Look there. {advice}")
    if server.policy == "noeviction":
        return Finding(OK, subject, "noeviction")
    if server.maxmemory == 0:
        return Finding(WARNING, subject, f"{server.policy}: harmless while no maxmemory is set.", advice)
    if server.policy.startswith("volatile-"):
        text = (
            "a full Redis keeps jobs, but throws away what drop_stale knows (an older payload may then run "
            "after a newer one), trackers, and what counts for rate limits."
        )
        return Finding(ERROR, subject, f"{server.policy}: {text}", advice)
    return Finding(ERROR, subject, f"{server.policy}: a full Redis throws jobs away.", advice)


def persistence(server: Server) -> Finding:
    """What a restart of the server would lose."""
    subject, advice = "persistence", "Set appendonly yes, and appendfsync everysec or always."
    if not server.written:
        text = "The last write to disk failed: a restart of Redis loses what came since the one before."
        return Finding(ERROR, subject, text, "See the log of Redis: often the disk is full.")
    if server.aof:
        lost = {"always": "nothing", "no": "what the operating system has not written yet"}
        what = lost.get(server.appendfsync or "", "the last second or two")
        return Finding(OK, subject, f"Append-only file: a crash of the machine loses {what}.")
    if server.aof is None or server.save is None:
        text = "The server does not tell whether it writes snapshots: CONFIG GET is forbidden."
        return Finding(WARNING, subject, f"No append-only file is known. {text}", advice)
    if server.save:
        text = "Snapshots only: a crash of Redis loses all calls, and all that was done, since the last one."
        return Finding(WARNING, subject, text, advice)
    return Finding(WARNING, subject, "Nothing is written to disk: a restart of Redis loses all jobs.", advice)


def clock(server: Server) -> Finding:
    """Countdowns go by Redis's clock; an eta is a time of the caller's."""
    off = abs(server.ahead)
    if off <= CLOCKS + server.give_or_take:
        return Finding(
            OK, "clock", f"This host and Redis differ by {duration(off + server.give_or_take)} at most."
        )
    text = f"Redis's clock is {duration(off)} {'ahead of' if server.ahead > 0 else 'behind'} this host's."
    return Finding(WARNING, "clock", text, "Let NTP set both clocks: an eta comes too early or too late.")


# -- nodes


def nodes(state: SystemState) -> Iterator[Finding]:
    """Each that is not simply at work; one finding for the others."""
    at_work = [node.name for node in state.nodes if node.alive and not node.quiet]
    if at_work:
        yield Finding(OK, "nodes", f"{len(at_work)} at work: {_listed(at_work)}")
    for node in state.nodes:
        subject = f"node {node.name}"
        if not node.alive:
            text = f"It was last heard of {duration(node.silent)} ago, and did not say that it stops."
            yield Finding(WARNING, subject, text, "See its log. Others recover what it ran.")
        elif node.quiet:
            advice = f"celery control -d {node.name} lowkiq_unquiet, when it is to work again."
            yield Finding(WARNING, subject, "It is quiet: it begins nothing of ordered queues.", advice)


# -- queues


def stored(queue: QueueState, reads: int) -> Iterator[Finding]:
    """Shard count and format, as the store has them."""
    subject = f"queue {queue.name}"
    if queue.format is not None and queue.format != reads:
        text = f"It is stored in format {queue.format}; this version of celery-lowkiq reads {reads}."
        yield Finding(ERROR, subject, text, "Drain it with the version that wrote it.")
    elif queue.stored is not None and queue.stored != queue.declared:
        text = (
            f"It is stored with {queue.stored} shards, the code declares {queue.declared}: calls are refused."
        )
        advice = f"Deploy shards={queue.stored} and let it drain, then shards={queue.declared}."
        yield Finding(ERROR, subject, text, advice)


def damaged(queue: QueueState) -> Iterator[Finding]:
    """Keys of its shards do not agree, or are of another type."""
    if queue.damages:
        texts = [f"{damage.shard or queue.name}: {damage.text}" for damage in queue.damages[:LISTED]]
        more = len(queue.damages) - len(texts)
        text = "It is damaged: " + "; ".join(texts) + (f"; and {more} more" if more else "")
        advice = f"celery -A proj lowkiq repair {queue.name} shows what it would do, and does it with --yes."
        yield Finding(ERROR, f"queue {queue.name}", text + ".", advice)


def unserved(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    """No living node serves it."""
    if not state.serving(queue.name):
        level = ERROR if queue.length else WARNING
        advice = "Start a worker with -P threads whose -Q and -X leave this queue, or end the quiet of one."
        yield Finding(level, f"queue {queue.name}", f"No worker serves it; {_wait(queue)}.", advice)


def unowned(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    """Shards that nobody has for longer than a change of hands takes, though nodes serve the queue, and none
    of these waits for them.
    """
    serving = state.serving(queue.name)
    if not serving:
        return
    patience = ORPHAN_TIMEOUT_LEASES * max(node.lease_seconds for node in serving)
    served_for = max(state.now - node.started_at for node in serving)
    free = [
        shard
        for shard in queue.shards
        if not shard.alive
        and min(served_for, _free_for(shard, state.now)) > patience
        and _seconds_left(queue, shard, serving) is None
    ]
    if free:
        text = f"Nobody takes {_shards(free)}, though nodes serve the queue."
        advice = "See the workers' logs. With lowkiq_splitter='by_node': do the node numbers leave one out?"
        yield Finding(ERROR, f"queue {queue.name}", text, advice)


def waiting(queue: QueueState, state: SystemState) -> Iterator[Finding]:
    """Shards without an owner, while a former lease runs out that Redis does not know any more."""
    serving = state.serving(queue.name)
    left = {
        shard.index: seconds
        for shard in queue.shards
        if (seconds := _seconds_left(queue, shard, serving)) is not None
    }
    if left:
        word = "Shard" if len(left) == 1 else "Shards"
        text = (
            f"{word} {ranges(sorted(left))}: Redis restarted, failed over or lost data; free in "
            f"{duration(max(left.values()))}."
        )
        advice = "Wait for it: a former owner may still work on them."
        yield Finding(WARNING, f"queue {queue.name}", text, advice)


def _seconds_left(queue: QueueState, shard: ShardReport, serving: Sequence[NodeReport]) -> float | None:
    """In how many s a node may take a shard without an owner; None when none waits for it."""
    if shard.owner is not None:
        return None
    return seconds_to_wait(serving, ShardRef(queue.name, shard.index))


def _free_for(shard: ShardReport, now: float) -> float:
    """For how many s nobody has worked on it."""
    if shard.owner is not None:
        return math.inf if shard.silent is None else shard.silent
    return now - (shard.since or 0.0)


def abandoned(queue: QueueState) -> Iterator[Finding]:
    """Jobs in processing whose owner does not live."""
    left = [shard for shard in queue.shards if shard.stats.busy and not shard.alive]
    if left:
        owners = sorted({shard.owner or "none" for shard in left})
        count = sum(shard.stats.busy for shard in left)
        jobs = _counted(count, "job is", "jobs are")
        text = f"{jobs} in processing in {_shards(left)} without a living owner ({_listed(owners)})."
        advice = "Whoever takes the shards next recovers them; that needs a worker that serves the queue."
        yield Finding(WARNING, f"queue {queue.name}", text, advice)


def paused(queue: QueueState, now: float) -> Iterator[Finding]:
    """All of it, some shards, or some ids."""
    found = queue.paused
    subject, advice = f"queue {queue.name}", "Resume it when it is to run again."
    if found.queue is not None:
        yield Finding(WARNING, subject, f"It is paused {since(found.queue, now)}.", advice)
    if found.shards:
        names = _listed([str(index) for index in found.shards])
        text = f"Shards paused by themselves: {names}, the first {since(min(found.shards.values()), now)}."
        yield Finding(WARNING, subject, text, advice)
    if found.ids:
        yield Finding(WARNING, subject, f"{_counted(found.ids, 'id is', 'ids are')} paused.", advice)


def _wait(queue: QueueState) -> str:
    return _counted(queue.length, "job waits", "jobs wait")


def _counted(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _shards(shards: Sequence[ShardReport]) -> str:
    word = "shard" if len(shards) == 1 else "shards"
    return f"{word} {_listed([str(shard.index) for shard in shards])}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
