"""Jobs that have been due for long: no push makes one, because a past due time counts as its arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.records import id_bytes
from celery_lowkiq.store.redis_store import RedisStore

INDEXES = ("due", "due_prioritized", "due_paused", "moving")
#: As PRIORITY_SPAN of waiting.lua.
SPAN = 2**34


class AgingStore(RedisStore):
    """Stores calls with a due time in the past as if they had been made then."""

    def push(self, queue: QueueSpec, jobs: Sequence[Call], *args: Any, **options: Any) -> None:
        began = server_time(self.client)
        super().push(queue, jobs, *args, **options)
        age(self.client, queue, jobs, began)


def server_time(client: Client) -> float:
    """Redis's clock; without one, nothing that is pushed gets older."""
    ((seconds, micros),) = client.commands([("TIME",)])
    return float(seconds) + float(micros) / 1e6


def age(client: Client, queue: QueueSpec, jobs: Sequence[Call], began: float) -> None:
    """Give jobs that have been due since ``began`` the times of their first calls."""
    past = {
        job.id: job.perform_in
        for job in reversed(jobs)
        if job.perform_in is not None and job.perform_in < began - 1
    }
    if not past or queue.policies.debounce is not None:
        return
    now = server_time(client)
    for job_id, perform_in in past.items():
        for shard in queue.shards_of(job_id):
            keys, name = shard_keys(shard), id_bytes(job_id)
            scores = client.commands([("ZSCORE", keys[index], name) for index in (*INDEXES, "by_priority")])
            for index, score in zip(INDEXES, scores, strict=False):
                if score and began <= float(score) <= now:
                    _write(client, keys, index, name, perform_in, scores[-1])


def _write(client: Client, keys: Any, index: str, name: bytes, perform_in: float, by_priority: Any) -> None:
    commands: list[tuple[Any, ...]] = [("ZADD", keys[index], "XX", repr(perform_in), name)]
    if by_priority:
        priority = float(by_priority) // SPAN
        commands.append(("ZADD", keys["by_priority"], "XX", repr(priority * SPAN + perform_in), name))
    client.commands(commands)
