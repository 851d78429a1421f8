"""Servers of Redis as the store sees them: masters, versions, settings, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from celery_lowkiq.rules.leases import DEADLINE, RENEWALS_PER_LEASE, TAKEOVER_LEASES
from celery_lowkiq.rules.text import duration, listed, sentence, size
from celery_lowkiq.rules.views import ERROR, LISTED, OK, WARNING, Finding, counted

# Redis server information for people, from the fields of INFO.


@dataclass(frozen=True)
class ServerInfo:
    """Sizes are in bytes, times in s. ``maxmemory`` 0: no limit. ``last_save_ok``: of RDB and AOF."""

    kind: str
    version: str
    mode: str
    role: str
    uptime: int
    used_memory: int
    peak_memory: int
    maxmemory: int
    maxmemory_policy: str
    fragmentation: float
    aof: bool
    last_save_ok: bool
    clients: int
    commands_per_second: int
    commands: int
    keys: int
    replicas: int
    #: Host and port or path, and database, without user and password.
    address: str = ""


def server_info(info: Mapping[str, Any]) -> ServerInfo:
    """Return the information from the fields of INFO; missing ones are empty or 0."""
    valkey = info.get("valkey_version")
    saves = (info.get("rdb_last_bgsave_status", "ok"), info.get("aof_last_write_status", "ok"))
    return ServerInfo(
        kind="Valkey" if valkey else "Redis",
        version=str(valkey or info.get("redis_version", "")),
        mode=str(info.get("redis_mode", info.get("server_mode", ""))),
        role=str(info.get("role", "")),
        uptime=_whole(info, "uptime_in_seconds"),
        used_memory=_whole(info, "used_memory"),
        peak_memory=_whole(info, "used_memory_peak"),
        maxmemory=_whole(info, "maxmemory"),
        maxmemory_policy=str(info.get("maxmemory_policy", "")),
        fragmentation=float(info.get("mem_fragmentation_ratio", 0) or 0),
        aof=bool(_whole(info, "aof_enabled")),
        last_save_ok=saves == ("ok", "ok"),
        clients=_whole(info, "connected_clients"),
        commands_per_second=_whole(info, "instantaneous_ops_per_sec"),
        commands=_whole(info, "total_commands_processed"),
        keys=sum(
            int(value["keys"])
            for name, value in info.items()
            if name.startswith("db") and isinstance(value, Mapping) and "keys" in value
        ),
        replicas=_whole(info, "connected_slaves"),
    )


def _whole(info: Mapping[str, Any], name: str) -> int:
    return int(info.get(name, 0) or 0)


# Health checks of one server.

#: The oldest supported version of Redis.
OLDEST = (6, 2)
#: Maximum difference between clocks, in s.
CLOCKS = 1.0


@dataclass(frozen=True)
class Server:
    """Report of a Redis server. None: its user may not read the field, or the server omits it."""

    name: str = "Redis"
    version: str = ""
    policy: str | None = None
    #: In bytes, 0 for no limit.
    maxmemory: int = 0
    aof: bool | None = None
    appendfsync: str | None = None
    #: Setting ``save``: empty when no snapshots are made.
    save: str | None = None
    #: True if the last write to disk succeeded.
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


#: Advice about a full Redis. A worker that starts declares queues of its broker, which is a write.
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
        text = "The server does not show its maxmemory-policy: INFO is forbidden, or leaves it out."
        return Finding(WARNING, subject, text, f"Look there. {advice}")
    if server.policy == "noeviction":
        return Finding(OK, subject, "noeviction")
    if server.maxmemory == 0:
        return Finding(WARNING, subject, f"{server.policy}: harmless while no maxmemory is set.", advice)
    text = "a full Redis evicts jobs."
    if server.policy.startswith("volatile-"):
        text = (
            "a full Redis keeps jobs, but evicts what drop_stale knows (an older payload may then run "
            "after a newer one), trackers, and what counts for rate limits."
        )
    return Finding(ERROR, subject, f"{server.policy}: {text}", advice)


def lacks_replicas(server: Server) -> bool:
    """True if a server refuses all writes because too few replicas are up to date."""
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


# Masters that store the shards, and the health checks of all masters together.

#: Minimum number of shards a master, with which the busiest one has little more than its share.
SHARDS_A_MASTER = 16
#: A failover takes up to about this many node timeouts, and as many seconds for the election.
FAILOVER_TIMEOUTS, ELECTION = 1.5, 1.5
#: Shortest node timeout to advise, in s: with less, a slow network looks like a dead master.
SHORTEST_TIMEOUT = 1.0
#: The part of a lease time that is left to a failover and to the renewals after it so that no lease runs out:
#: its last renewal may be a turn old when the master fails. Nodes try again every quarter of a second.
LEASE_LEFT = DEADLINE - 1 / RENEWALS_PER_LEASE
RENEWALS = 0.5
SLOTS = 16384
#: Text about a setting.
UNREPORTED = "The masters do not tell it: CONFIG GET is forbidden."

UNKNOWN = Server()


class Kind(str, Enum):
    """How the masters are reached."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Master:
    """A server that stores shards. ``unreachable``: why it is unreachable, ``server`` is unknown then."""

    #: Host and port, path, or name behind sentinels. A failover does not change the name.
    address: str
    server: Server = UNKNOWN
    #: Number of slots; None without a cluster.
    slots: int | None = None
    #: Number of shards of each queue.
    shards: Mapping[str, int] = field(default_factory=dict)
    unreachable: str | None = None
    #: True if it is unreachable because it refuses user or password.
    login_refused: bool = False
    #: Why it refuses all scripts, though it answers.
    refuses: str | None = None
    #: Commands that scripts need and the server refused, with its error.
    refused: Mapping[str, str] = field(default_factory=dict)
    #: Host and port behind sentinels; None without these.
    place: str | None = None

    @property
    def name(self) -> str:
        """The address for people: ``a:6379``, ``mymaster db 0 (a:6379)``."""
        return f"{self.address} ({self.place})" if self.place else self.address

    @property
    def shard_count(self) -> int:
        """Number of shards of all queues."""
        return sum(self.shards.values())


@dataclass(frozen=True)
class Topology:
    """All masters."""

    kind: Kind
    masters: tuple[Master, ...]
    #: Lease time of the app's nodes.
    lease_seconds: float
    #: Shards of each queue that lie on no master.
    homeless: Mapping[str, int] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """Shards of the busiest master as a multiple of its fair share; 1 without shards."""
        return _skew([master.shard_count for master in self.masters])

    @property
    def unassigned(self) -> int:
        """Number of slots without a master; 0 without a cluster."""
        return SLOTS - sum(master.slots or 0 for master in self.masters) if self.kind is Kind.CLUSTER else 0

    @property
    def is_whole(self) -> bool:
        """True if each shard has a master that answers."""
        if self.unassigned:
            return False
        return all(master.unreachable is None and master.refuses is None for master in self.masters)

    @property
    def lacks_replicas(self) -> bool:
        """True if a master refuses all writes because too few replicas are up to date."""
        return any(lacks_replicas(master.server) for master in self.masters)

    @property
    def clock_skew(self) -> float:
        """Largest difference between the clocks of two masters in s, as far as it exceeds what was measured
        along with it.
        """
        known = [master.server for master in self.masters if master.unreachable is None]
        least = max((server.ahead - server.give_or_take for server in known), default=0.0)
        return max(0.0, least - min((server.ahead + server.give_or_take for server in known), default=0.0))


def check_topology(topology: Topology) -> Iterator[Finding]:
    """Yield the findings about the masters."""
    known = replace(
        topology, masters=tuple(master for master in topology.masters if master.unreachable is None)
    )
    for check in (version, eviction, persistence, clock):
        yield from _of_each(known, check)
    yield from _refused(known)
    yield from _refused_writes(known)
    if topology.kind is Kind.CLUSTER:
        yield from _masters(topology)
        yield from _shards_a_master(topology)
        yield from _clocks(known)
        yield from _coverage(known)
        yield from _node_timeout(known)
    yield from _replicas(known)


def check_users(refusing: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding about the replicas with these addresses, which refuse user or password."""
    if refusing:
        text = (
            f"{listed(refusing, LISTED)}: this replica refuses user or password. As a master, it would, too."
        )
        advice = (
            "Create the user on each node: `celery -A proj lowkiq acl --cluster` writes its rights, and "
            "Redis copies users neither to replicas nor to other masters."
        )
        yield Finding(WARNING, "users of replicas", text, advice)


def refusals(refused: Mapping[str, str], name: str = "Redis") -> Iterator[Finding]:
    """Yield a finding for each command that scripts need and the server with this name has refused."""
    for command, error in refused.items():
        begin = f"{name} refuses {command}"
        if command.startswith("INFO"):
            text = f"{begin}: {sentence(error)} A lease that was lost in a failover is not noticed."
            advice = "Permit it, or expect that two nodes may run a shard for a lease time after a failover."
            yield Finding(WARNING, "commands", text, advice)
        else:
            text = f"{begin}: {sentence(error)} No call can be stored, and none runs."
            advice = "Permit it (`celery -A proj lowkiq acl` writes the rights), or use a Redis that has it."
            if "NOPERM" in error:
                text = f"{begin} to this user: {sentence(error)}"
                advice = "Look with the user of a reader, a worker or an operator; a caller sees too little."
            yield Finding(ERROR, "commands", text, advice)


# -- checks


def _of_each(topology: Topology, check: Callable[[Server], Finding]) -> Iterator[Finding]:
    """Yield equal findings about several masters once, with the masters if others have another one."""
    found: dict[Finding, list[str]] = {}
    for master in topology.masters:
        found.setdefault(check(master.server), []).append(master.name)
    for finding, addresses in found.items():
        yield finding if len(found) == 1 else _about(addresses, finding)


def _about(addresses: list[str], finding: Finding) -> Finding:
    return replace(finding, text=f"{listed(addresses, LISTED)}: {finding.text}")


def _refused(topology: Topology) -> Iterator[Finding]:
    found: dict[Finding, list[str]] = {}
    for master in topology.masters:
        for finding in refusals(master.refused):
            found.setdefault(finding, []).append(master.name)
    for finding, addresses in found.items():
        yield finding if len(addresses) == len(topology.masters) else _about(addresses, finding)


def _masters(topology: Topology) -> Iterator[Finding]:
    for master in topology.masters:
        if reason := master.unreachable or master.refuses:
            waiting = counted(master.shard_count, "shard waits", "shards wait")
            text = f"{sentence(reason)} Its {waiting}."
            yield Finding(ERROR, f"master {master.address}", text, _advice(master))
    if without := topology.unassigned:
        lost = [f"{name} ({count})" for name, count in topology.homeless.items()]
        text = f"{without} slots have no master" + (
            f", with shards of {listed(lost, LISTED)}." if lost else "."
        )
        yield Finding(ERROR, "slots", text, "redis-cli --cluster fix, with the address of a node.")
    shards = [f"{master.address} {master.shard_count}" for master in topology.masters]
    total = sum(master.shard_count for master in topology.masters)
    text = f"{counted(len(shards), 'master', 'masters')}, {counted(total, 'shard', 'shards')}"
    if total and len(shards) > 1:
        text = f"{text}, the busiest has {topology.skew:.2f} times its share"
    yield Finding(OK, "masters", f"{text}: {listed(shards, LISTED)}")


def _advice(master: Master) -> str:
    if master.login_refused:
        return (
            "The server is up: `celery -A proj lowkiq acl --cluster` writes the rights of the user, and ACL "
            "SETUSER creates it there. Look at the other nodes, too: a replica that is promoted needs it."
        )
    if master.unreachable is None:
        return "It is up: bring the masters back that are unreachable, or see its log."
    return "Start it, or let the cluster promote a replica of it."


def _refused_writes(topology: Topology) -> Iterator[Finding]:
    for master in topology.masters:
        if refused := refused_writes(master.server):
            reason, advice = refused
            yield Finding(ERROR, "writes", f"{master.name} refuses them: {reason}", advice)


def _shards_a_master(topology: Topology) -> Iterator[Finding]:
    count, few = len(topology.masters), []
    for name in sorted({name for master in topology.masters for name in master.shards}):
        shards = [master.shards.get(name, 0) for master in topology.masters]
        if count > 1 and sum(shards) < SHARDS_A_MASTER * count:
            few.append(f"{name} ({max(shards)} of {sum(shards)}, {_skew(shards):.1f} times its share)")
    if few:
        text = (
            f"Slots are dealt by chance: with fewer than {SHARDS_A_MASTER} shards a master, one may have far "
            "more than its share of a queue"
        )
        command = f"celery -A proj lowkiq reshard QUEUE {SHARDS_A_MASTER * count}"
        advice = f"For those that one server is too small for: {command}."
        yield Finding(WARNING, "shards a master", f"{text}: {listed(few, LISTED)}.", advice)


def _skew(shards: list[int]) -> float:
    return max(shards) * len(shards) / sum(shards) if any(shards) else 1.0


def _clocks(topology: Topology) -> Iterator[Finding]:
    if (skew := topology.clock_skew) > CLOCKS:
        text = f"The clocks of the masters differ by {duration(skew)}."
        advice = "Let NTP set them: after a failover or a move of slots, countdowns are off by as much."
        yield Finding(WARNING, "clocks of masters", text, advice)
    elif topology.masters:
        yield Finding(OK, "clocks of masters", f"They differ by no more than {duration(CLOCKS)}.")


def _coverage(topology: Topology) -> Iterator[Finding]:
    subject = "cluster-require-full-coverage"
    found = {master.server.full_coverage for master in topology.masters}
    if None in found:
        yield Finding(WARNING, subject, UNREPORTED, "Look there: it should be no.")
    elif True in found:
        text = "yes: while one slot has no master, all masters refuse all calls."
        yield Finding(WARNING, subject, text, f"Set {subject} to no: then only the shards of that slot wait.")
    elif found:
        yield Finding(OK, subject, "no")


def _node_timeout(topology: Topology) -> Iterator[Finding]:
    subject, lease = "cluster-node-timeout", topology.lease_seconds
    timeouts = [master.server.node_timeout for master in topology.masters]
    known = [timeout for timeout in timeouts if timeout is not None]
    if unreported := [master.name for master in topology.masters if master.server.node_timeout is None]:
        finding = Finding(WARNING, subject, UNREPORTED, f"Look there. {_settings_for(lease)}")
        yield _about(unreported, finding) if known else finding
    if not known:
        return
    failover = max(known) * FAILOVER_TIMEOUTS + ELECTION
    text = (
        f"{duration(max(known))}, and a lease lasts {duration(lease)}: when a master fails, its shards wait"
    )
    text = f"{text} about {duration(failover)} for its replica"
    if failover + RENEWALS <= LEASE_LEFT * lease:
        yield Finding(OK, subject, f"{text}.")
        return
    more = (2 / RENEWALS_PER_LEASE + TAKEOVER_LEASES) * lease
    text = f"{text}, and up to {duration(more)} more where leases run out meanwhile."
    yield Finding(WARNING, subject, text, _shorter_wait(lease, failover))


def _shorter_wait(lease: float, failover: float) -> str:
    """Settings with which no lease runs out in a failover."""
    advice = f"lowkiq_lease_seconds to {math.ceil((failover + RENEWALS) / LEASE_LEFT)} at least"
    timeout = _longest_timeout(lease)
    if timeout >= SHORTEST_TIMEOUT:
        advice = f"cluster-node-timeout to {timeout * 1000:.0f} (ms) at most, or {advice}"
    return f"Set {advice}."


def _longest_timeout(lease: float) -> float:
    """Return the longest node timeout (s) with which no lease runs out in a failover."""
    return (LEASE_LEFT * lease - RENEWALS - ELECTION) / FAILOVER_TIMEOUTS


def _settings_for(lease: float) -> str:
    """Return what fits a lease where the node timeout is unknown."""
    timeout = _longest_timeout(lease)
    if timeout < SHORTEST_TIMEOUT:
        return _shorter_wait(lease, SHORTEST_TIMEOUT * FAILOVER_TIMEOUTS + ELECTION)
    return f"With a lease of {duration(lease)}, it should be {timeout * 1000:.0f} (ms) at most."


def _replicas(topology: Topology) -> Iterator[Finding]:
    alone = [master.name for master in topology.masters if master.server.replicas == 0]
    if alone and topology.kind is not Kind.SERVER:
        text = f"{listed(alone, LISTED)}: no replica is connected."
        yield Finding(WARNING, "replicas", text, "Add one: nothing can take the place of this master.")
    loose = [
        master.name
        for master in topology.masters
        if master.server.replicas and not master.server.min_replicas
    ]
    if loose:
        text = (
            f"{listed(loose, LISTED)}: a master that is cut off from its replicas goes on storing calls, and "
            "loses them when it is replaced."
        )
        advice = "Set min-replicas-to-write 1 and min-replicas-max-lag 10, with two replicas or more."
        yield Finding(WARNING, "min-replicas-to-write", text, advice)
    elif topology.kind is not Kind.SERVER and topology.masters and not alone:
        yield Finding(OK, "replicas", "Each master has one, and stores nothing without.")
