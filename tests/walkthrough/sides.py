"""The two sides of a trace: how each is called, watched, and looked after by its operator."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from celery import Celery
from redis import Redis

from celery_lowkiq.rules.errors import LowkiqError
from tests.walkthrough import ordered, plain
from tests.walkthrough.ordered import versions
from tests.walkthrough.recorder import URL, record_database
from tests.walkthrough.scripts import Script

Places = dict[str, dict[str, Any]]


def part(order: str, parts: int) -> str:
    """The plain queue of an order, where queues stand for shards."""
    return f"part-{zlib.crc32(order.encode()) % parts}"


class PlainSide:
    """A plain Celery queue."""

    name, app = "plain", plain.app

    def __init__(self, script: Script) -> None:
        self.task = getattr(plain, script.task)
        self.workers = dict(script.plain_workers or script.workers)
        self.divided = script.plain_workers is not None
        self._parts = 2
        self._redis = Redis.from_url(URL, decode_responses=True)

    def queues(self, place: int) -> Sequence[str]:
        """Arguments of a worker."""
        return ["-Q", f"part-{place}"] if self.divided else []

    def is_ready(self) -> bool:
        """Whether all workers answer."""
        return len(self.app.control.ping(timeout=0.5)) == len(self.workers)

    def call(self, order: str, change: dict[str, Any]) -> None:
        """Send a message."""
        queue = {"queue": part(order, self._parts)} if self.divided else {}
        self.task.apply_async((order, change), **queue)

    def look(self) -> list[tuple[str, int, str]]:
        """(id, version, task id) of all messages in Redis, in the order in which they are taken."""
        names = [f"part-{n}" for n in range(4)] if self.divided else ["celery"]
        with self._redis.pipeline() as pipe:
            pipe.hvals("unacked")
            for name in names:
                pipe.lrange(name, 0, -1)
            unacked, *queues = pipe.execute()
        messages = [json.loads(text)[0] for text in unacked]
        messages += [json.loads(text) for queue in queues for text in reversed(queue)]
        return [self._about(message) for message in messages]

    def _about(self, message: dict[str, Any]) -> tuple[str, int, str]:
        (order, change), _, _ = json.loads(base64.b64decode(message["body"]))
        return order, change["version"], message["headers"]["id"]

    def is_done(self) -> bool:
        """Whether no message is left."""
        return not self.look()

    def mend(self) -> str:
        """What the operator does when the rate is there."""
        return "The operator adds the rate. Nothing is left to run again."

    def reshard(self) -> str:
        """Send to more queues."""
        self._parts = 4
        return "Callers now send to 4 queues."


class OrderedSide:
    """An ordered queue."""

    name, app = "ordered", ordered.app

    def __init__(self, script: Script) -> None:
        self.task = getattr(ordered, script.task)
        self.workers = dict(script.workers)
        self._by_score = script.name == "twice"
        self._queue = self.task.ordered_queue

    def queues(self, place: int) -> Sequence[str]:
        """Arguments of a worker."""
        return []

    def is_ready(self) -> bool:
        """Whether all workers answer, and each shard has an owner."""
        answered = len(self.app.control.ping(timeout=0.5)) == len(self.workers)
        return answered and all(shard.owner for shard in self._queue.shards())

    def call(self, order: str, change: dict[str, Any]) -> None:
        """Make a call."""
        score = {"score": change["version"]} if self._by_score else {}
        self.task.apply_async((order, change), **score)

    def look(self) -> Places | None:
        """What lies in Redis, by id. None while it moves so that nobody can tell."""
        places: Places = {}
        try:
            for job in self._queue.processing().items:
                places.setdefault(job.id, {})["p"] = _versions(job)
            for job in self._queue.jobs().items:
                place = places.setdefault(job.id, {})
                place |= {"w": _versions(job), "due": job.perform_in}
                if job.retry_count >= 0:
                    place["n"] = job.retry_count
                if job.held:
                    place["h"] = True
            for dead in self._queue.morgue().items:
                places.setdefault(dead.id, {})["d"] = _versions(dead)
        except LowkiqError:
            return None
        return places

    def is_done(self) -> bool:
        """Whether no job is left."""
        stats = self._queue.stats()
        return stats.length + stats.busy + stats.morgue_length == 0 and self._queue.migration() is None

    def mend(self) -> str:
        """What the operator does when the rate is there."""
        self._queue.requeue(["42"])
        return "The operator adds the rate, and requeues account 42."

    def reshard(self) -> str:
        """Move the queue to more shards."""
        threading.Thread(target=self._queue.reshard, args=(4,), daemon=True).start()
        return "lowkiq reshard track_order 4"


def _versions(job: Any) -> list[int]:
    return versions([payload.value for payload in job.payloads])


Side = PlainSide | OrderedSide


def set_rates(app: Celery, **rates: float) -> None:
    """Store rates of exchange."""
    record_database().hset("rates", mapping={name: str(rate) for name, rate in rates.items()})
