"""Facts for the checks of health: masters, queues, nodes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from celery_lowkiq.rules.errors import (
    ClusterDown,
    ConfigurationError,
    LoginRefused,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.health import QueueState, SystemState
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Damage, damages
from celery_lowkiq.rules.topology import Master, Server, Topology
from celery_lowkiq.rules.views import DAY, current
from celery_lowkiq.store import counts, diagnosis, node_reports
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import NO_MASTER
from celery_lowkiq.store.exchange import Asked
from celery_lowkiq.store.keys import FORMAT, queue_key, shard_keys
from celery_lowkiq.store.listings import ShardReads
from celery_lowkiq.store.node_reports import read_nodes
from celery_lowkiq.store.records import parse_id, reads_replies, seconds_of_time
from celery_lowkiq.store.registry import as_known, parse_layout
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.script import load

# Looks for masters that may evict jobs, and for commands that a service or the rights of its user forbid.


def refused_commands(
    client: Client, shards: Sequence[ShardRef]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the commands that scripts need and are refused, each with its error, by address of the master.

    One shard of each master is asked; an unreachable master is left out. The second part has the errors of
    masters that refuse all scripts. Raises StoreUnavailable when there is only one and it is unreachable;
    ConfigurationError for a wrong URL.
    """
    calls = {shard: load("read_server").call(shard_keys(shard)) for shard in client.streams(shards)}
    found, errors = client.each(calls, StoreError)
    refused: dict[str, dict[str, str]] = {}
    down: dict[str, str] = {}
    for shard, reply in found.items():
        if commands := _refused(reply):
            refused[client.servers.master_of(shard)] = commands
    for shard, error in errors.items():
        master = client.servers.master_of(shard)
        if isinstance(error, ConfigurationError):
            # The URL is wrong: no right would help.
            raise error
        if isinstance(error, ClusterDown):
            down[master] = str(error)
        elif not isinstance(error, StoreUnavailable):
            refused[master] = {"EVALSHA": str(error)}
    return refused, down


def memory_limits(found: Mapping[str, Any]) -> Server:
    """Return the memory limit and the eviction policy of the reply of INFO, if that is permitted."""
    info = as_text(found.get("info", {}))
    return Server(policy=info.get("maxmemory_policy"), maxmemory=int(info.get("maxmemory", 0)))


def as_text(reply: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the names and values of a reply as text."""
    return {_text(name): _text(value) for name, value in reply.items()}


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _refused(reply: Sequence[bytes]) -> dict[str, str]:
    _, *texts = map(parse_id, reply)
    return {f"{command} in scripts": error for command, error in zip(texts[::2], texts[1::2], strict=True)}


# Reads what the masters report about themselves, and which shards each of them stores.

#: Before Redis 7, CONFIG GET takes one name only.
SETTINGS = ("save", "appendfsync", "min-replicas-to-write")
CLUSTER_SETTINGS = ("cluster-require-full-coverage", "cluster-node-timeout")


@reads_replies
def read_topology(client: Client, queues: Sequence[QueueSpec], lease_seconds: float) -> Topology:
    """Return the masters with their shards, by the stored numbers of shards.

    What the connection's user may not read stays unknown. Raises StoreError when no master responds.
    """
    asked = client.servers.masters()
    stored = as_known(client.reader(), queues)
    shards: dict[str, Counter[str]] = defaultdict(Counter)
    for queue in stored:
        for shard in queue.shard_refs():
            shards[client.servers.master_of(shard)][queue.name] += 1
    masters = [_master(each, shards[each.address]) for each in asked]
    if all(master.unreachable is not None for master in masters):
        raise StoreUnavailable(
            masters[0].unreachable if masters else "Redis is not available: no master has a slot"
        )
    all_shards = [shard for queue in stored for shard in queue.shard_refs()]
    refused, refusing = refused_commands(client, all_shards)
    place = client.servers.behind_sentinels()
    found = tuple(
        replace(
            one,
            refused=refused.get(one.address, {}),
            refuses=None if one.unreachable else refusing.get(one.address),
            place=place,
        )
        for one in masters
    )
    return Topology(client.servers.kind, found, lease_seconds, dict(shards[NO_MASTER]))


def _master(asked: Asked, shards: Mapping[str, int]) -> Master:
    names = SETTINGS if asked.slots is None else SETTINGS + CLUSTER_SETTINGS
    found, errors = asked.ask({"info": ("INFO",), **{name: ("CONFIG GET", name) for name in names}})
    before = time.time()
    clock, refused = asked.ask({"time": ("TIME",)})
    after = time.time()
    lost = errors.get("info"), refused.get("time")
    if outage := next((error for error in lost if isinstance(error, StoreUnavailable)), None):
        return Master(
            asked.address,
            slots=asked.slots,
            shards=shards,
            unreachable=str(outage),
            login_refused=isinstance(outage, LoginRefused),
        )
    settings = [as_text(found[name]) for name in names if name in found]
    config = {name: value for setting in settings for name, value in setting.items()}
    server = _server(as_text(found.get("info", {})), config)
    if "time" in clock:
        ahead = seconds_of_time(clock["time"]) - (before + after) / 2
        server = replace(server, ahead=ahead, give_or_take=(after - before) / 2)
    return Master(asked.address, server, asked.slots, shards)


def _server(info: Mapping[str, Any], config: Mapping[str, Any]) -> Server:
    timeout, coverage = config.get("cluster-node-timeout"), config.get("cluster-require-full-coverage")
    least = config.get("min-replicas-to-write")
    return Server(
        name="Valkey" if info.get("server_name") == "valkey" else "Redis",
        version=str(info.get("valkey_version") or info.get("redis_version") or ""),
        policy=info.get("maxmemory_policy"),
        maxmemory=int(info.get("maxmemory", 0)),
        aof=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        appendfsync=config.get("appendfsync"),
        save=config.get("save"),
        written=_written(info),
        used_memory=int(info.get("used_memory", 0)),
        replicas=int(info["connected_slaves"]) if "connected_slaves" in info else None,
        # It is left out while the setting is 0.
        min_replicas="min_slaves_good_slaves" in info if info else None,
        min_replicas_to_write=int(least) if least else None,
        good_replicas=int(info["min_slaves_good_slaves"]) if "min_slaves_good_slaves" in info else None,
        full_coverage=coverage == "yes" if coverage else None,
        node_timeout=int(timeout) / 1000 if timeout else None,
    )


def _written(info: Mapping[str, Any]) -> bool:
    of_aof = info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok"
    return not of_aof and info.get("rdb_last_bgsave_status", "ok") == "ok"


# Reads the state for the health checks: the nodes, and how each queue is stored.

#: Dead jobs of a queue in which poison pills are counted.
SEARCHED = 1000


@reads_replies
def read_state(client: Client, queues: Sequence[QueueSpec], topology: Topology) -> SystemState:
    """Return the state of nodes and queues on these masters. Raises StoreError."""
    return SystemState(
        format=str(FORMAT),
        topology=topology,
        nodes=current(read_nodes(client)),
        queues=[_queue_if_there(client, queue) for queue in queues],
    )


def _queue_if_there(client: Client, queue: QueueSpec) -> QueueState:
    try:
        return _queue(client, queue)
    except StoreUnavailable as error:
        return QueueState(queue.name, queue.shards, None, None, unread=str(error))


def _queue(client: Client, queue: QueueSpec) -> QueueState:
    key = queue_key(queue.name)
    command = "HMGET", key, "shards", "format", "migration_paused"
    known, now = client.commands([command, ("TIME",)], readable=True)
    if known is None:
        text = f"the key {key} has the wrong type. Delete it: the next call registers the queue again"
        return QueueState(queue.name, queue.shards, None, None, damages=(Damage(None, text),))
    layout = parse_layout(known[0])
    stored_format = (known[1] or b"").decode("latin-1") if known[0] or known[1] else None
    state = QueueState(queue.name, queue.shards, layout.shards if layout else None, stored_format)
    queue = queue.with_layout(layout or queue.layout)
    state = replace(state, former=queue.former_shards, migration_paused=known[2] is not None)
    conditions = Repairs(client).conditions(queue.shard_refs())
    found = [damage for each in conditions for damage in damages(each, queue.layout)]
    state = replace(state, damages=tuple(found))
    if any(each.wrong for each in conditions):
        return state  # its counts cannot be read
    shards = diagnosis.shards(client, queue)
    days, _ = node_reports.histories(client, [queue], DAY)
    return replace(
        state,
        shards=shards,
        day=days.get(queue.name, ()),
        poison_pills=_poison_pills(client, queue) if any(one.stats.morgue_length for one in shards) else 0,
        paused=counts.paused(client, queue),
        limited=diagnosis.is_limited(client, queue),
        now=seconds_of_time(now),
        clocks={shard.index: at for shard, at in ShardReads(client, queue).clocks().items()},
    )


def _poison_pills(client: Client, queue: QueueSpec) -> int:
    """Count the poison pills among the first SEARCHED dead jobs."""
    pages = counts.failed_jobs(ShardReads(client, queue), dead=True)
    dead = islice((job for page in pages for job in page), SEARCHED)
    return sum(job.error == queue.poison_error for job in dead)
