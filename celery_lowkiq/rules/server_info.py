"""Redis server information for people, from the fields of INFO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        keys=sum(int(db["keys"]) for name, db in info.items() if name.startswith("db") and _is_db(db)),
        replicas=_whole(info, "connected_slaves"),
    )


def _is_db(value: Any) -> bool:
    return isinstance(value, Mapping) and "keys" in value


def _whole(info: Mapping[str, Any], name: str) -> int:
    return int(info.get(name, 0) or 0)
