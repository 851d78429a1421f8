"""What a worker of a recorded trace does and writes down: slow work, rows, and the begin and end of runs."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from typing import Any

from redis import Redis

#: The broker. What is recorded goes to another database of the same server.
URL = os.environ.get("WALKTHROUGH_URL", "redis://localhost:6379/0")
#: The letter of this worker in the picture.
WORKER = os.environ.get("WALKTHROUGH_WORKER", "")
RECORD = "record"
MINUS = "\N{MINUS SIGN}"


class ServiceDown(Exception):
    """The pretended service does not answer."""


def record_database() -> Redis:
    """A client of the database with the record."""
    return Redis.from_url(URL[: -len("/0")] + "/3", decode_responses=True)


_redis = record_database()


def note(kind: str, **facts: Any) -> None:
    """Write an event of this moment down."""
    _redis.rpush(RECORD, json.dumps({"t": time.time(), "e": kind, **facts}))


def lane() -> str:
    """The worker's letter and the number of its thread, from 1: ``A2``."""
    found = re.search(r"(?:lane-|_)(\d+)", threading.current_thread().name)
    return f"{WORKER}{int(found[1]) + 1 if found else 1}"


def slow_service(order: str, change: dict[str, Any]) -> None:
    """Take the time that the script plans for this version: as a request to another service does."""
    plan = json.loads(_redis.lpop(f"plan/{order}/{change['version']}") or '{"ms": 200}')
    time.sleep(plan["ms"] / 1000)
    if plan.get("down"):
        raise ServiceDown("503 Service Unavailable")


class Orders:
    """The table of orders: one row an order."""

    def save(self, order: str, change: dict[str, Any]) -> None:
        """Overwrite the row of an order."""
        _redis.hset("rows", order, change["status"])
        note("write", id=order, v=change["version"], s=change["status"])


class Rates:
    """Rates of exchange; an operator may add one."""

    def __getitem__(self, currency: str) -> float:
        found = _redis.hget("rates", currency)
        if found is None:
            raise KeyError(currency)
        return float(found)


class Ledger:
    """The table of accounts: one balance an account."""

    def post(self, account: str, entry: dict[str, Any], rate: float) -> None:
        """Add an entry to the balance."""
        time.sleep(0.2)
        balance = _redis.hincrby("balances", account, round(entry["amount"] * rate))
        shown = f"{balance} €".replace("-", MINUS)
        _redis.hset("rows", account, shown)
        note("write", id=account, v=entry["version"], s=shown)


orders, rates, ledger = Orders(), Rates(), Ledger()
