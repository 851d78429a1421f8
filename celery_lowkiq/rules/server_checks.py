"""Health checks of one server."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .findings import ERROR, OK, WARNING, Finding
from .text import duration, size

#: The oldest supported version of Redis.
OLDEST = (6, 2)
#: Maximum difference between clocks, in s.
CLOCKS = 1.0


@dataclass(frozen=True)
class Server:
    """What a Redis server reports. None: its user may not read it, or the server leaves it out."""

    name: str = "Redis"
    version: str = ""
    policy: str | None = None
    #: In bytes, 0 for no limit.
    maxmemory: int = 0
    aof: bool | None = None
    appendfsync: str | None = None
    #: Setting ``save``: empty when no snapshots are made.
    save: str | None = None
    #: Whether the last write to disk succeeded.
    written: bool = True
    #: Its clock minus this host's, and the maximum error of that, in s.
    ahead: float = 0.0
    give_or_take: float = 0.0
    #: In bytes.
    used_memory: int = 0
    #: Number of replicas that are connected, and whether a write waits for enough of them
    #: (``min-replicas-to-write``).
    replicas: int | None = None
    min_replicas: bool | None = None
    #: Setting ``min-replicas-to-write``, and the number of replicas that count for it.
    min_replicas_to_write: int | None = None
    good_replicas: int | None = None
    #: Settings ``cluster-require-full-coverage`` and ``cluster-node-timeout`` (s) of a node of a cluster.
    full_coverage: bool | None = None
    node_timeout: float | None = None


#: What to do about a full Redis. A worker that starts declares queues of its broker, which is a write.
FULL = (
    "Raise maxmemory first, and restart no worker before: those that run drain their queues (not on Redis "
    "6.2), and one that starts fails when this is also the broker, whose writes by kombu are refused, too."
)


def version(server: Server) -> Finding:
    """Return whether the version is supported."""
    known = tuple(int(part) for part in re.findall(r"\d+", server.version)[:2])
    text = f"{server.name} {server.version or 'of an unknown version'}"
    if known and known < OLDEST:
        return Finding(ERROR, "server", text, "Redis 6.2 or newer is needed, or Valkey.")
    return Finding(OK, "server", text)


def eviction(server: Server) -> Finding:
    """Return whether a full Redis refuses writes, or evicts jobs.

    Policies ``volatile-*`` evict keys that expire. Jobs do not; what ``drop_stale`` compares with, trackers,
    and the tokens of rate limits do.
    """
    subject, advice = "maxmemory-policy", "Set maxmemory-policy to noeviction."
    if server.policy is None:
        text = "The server does not tell its maxmemory-policy: INFO is forbidden, or leaves it out."
        return Finding(WARNING, subject, text, f"Look there. {advice}")
    if server.policy == "noeviction":
        return Finding(OK, subject, "noeviction")
    if server.maxmemory == 0:
        return Finding(WARNING, subject, f"{server.policy}: harmless while no maxmemory is set.", advice)
    text = "a full Redis throws jobs away."
    if server.policy.startswith("volatile-"):
        text = (
            "a full Redis keeps jobs, but throws away what drop_stale knows (an older payload may then run "
            "after a newer one), trackers, and what counts for rate limits."
        )
    return Finding(ERROR, subject, f"{server.policy}: {text}", advice)


def lacks_replicas(server: Server) -> bool:
    """Whether a server refuses all writes, since too few replicas are up to date."""
    least = server.min_replicas_to_write or 1
    return bool(server.min_replicas) and server.good_replicas is not None and server.good_replicas < least


def refused_writes(server: Server) -> tuple[str, str] | None:
    """Return why a server refuses writes, with advice; None when nothing is known of that."""
    if lacks_replicas(server):
        set_to, good = server.min_replicas_to_write or "set", server.good_replicas
        text = (
            f"min-replicas-to-write is {set_to}, and {good} of its {server.replicas or 0} connected replicas "
            "are up to date (NOREPLICAS). No call is stored there, and no job of its shards runs."
        )
        return text, "Start a replica of it, or connect it again; or lower min-replicas-to-write."
    if server.policy == "noeviction" and 0 < server.maxmemory <= server.used_memory:
        text = f"it uses {size(server.used_memory)}, and maxmemory is {size(server.maxmemory)} (OOM)."
        return f"{text} No call is stored there.", FULL
    return None


def persistence(server: Server) -> Finding:
    """Return what a restart loses."""
    subject, advice = "persistence", "Set appendonly yes, and appendfsync everysec or always."
    if not server.written:
        text = "The last write to disk failed: a restart of Redis loses what came since the one before."
        return Finding(ERROR, subject, text, "See the log of Redis: often the disk is full.")
    if server.aof:
        lost = {"always": "nothing", "no": "what the operating system has not written yet"}
        what = lost.get(server.appendfsync or "", "the last second or two")
        return Finding(OK, subject, f"Append-only file: a crash of the machine loses {what}.")
    if server.aof is None or server.save is None:
        text = (
            "No append-only file is known. The server does not tell whether it writes snapshots: "
            "CONFIG GET is forbidden."
        )
    elif server.save:
        text = "Snapshots only: a crash of Redis loses all calls, and all that was done, since the last one."
    else:
        text = "Nothing is written to disk: a restart of Redis loses all jobs."
    return Finding(WARNING, subject, text, advice)


def clock(server: Server) -> Finding:
    """Return whether the clocks of this host and the server agree."""
    # Countdowns go by Redis's clock; an eta is a time of the caller's clock.
    off = abs(server.ahead)
    if off <= CLOCKS + server.give_or_take:
        text = f"This host and Redis differ by {duration(off + server.give_or_take)} at most."
        return Finding(OK, "clock", text)
    text = f"Redis's clock is {duration(off)} {'ahead of' if server.ahead > 0 else 'behind'} this host's."
    return Finding(WARNING, "clock", text, "Let NTP set both clocks: an eta comes too early or too late.")
