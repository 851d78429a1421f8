"""What a run was measured on; no names of hosts."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import redis

from . import sidekiq

CALIBRATION_ROUNDS = 300


def facts(client: redis.Redis) -> dict[str, Any]:
    """Cores, processor, the load so far (others may use the machine), and all versions that count."""
    server: Any = client.info("server")
    # Its redis_version is that of the Redis that it is compatible with.
    released = server.get("valkey_version")
    memory: Any = client.info("memory")
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("celery", "kombu", "redis", "hiredis")},
        **sidekiq.versions(),
        "server": f"{server.get('server_name', 'redis')} {released or server['redis_version']}",
        "allocator": memory["mem_allocator"],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def calibrate() -> float:
    """Microseconds of a piece of plain Python work: how fast the machine is at this moment."""
    document = {"id": "42", "payload": {"status": "paid", "version": 7}, "list": list(range(20))}
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(CALIBRATION_ROUNDS):
            text = json.dumps(document)
            document = {**json.loads(text), "size": len(text)}
        best = min(best, time.perf_counter() - began)
    return best * 1e6
