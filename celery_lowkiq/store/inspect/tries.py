"""The log of a job's tries, written by ``scripts/lib/tries.lua``."""

from __future__ import annotations

import re

from celery_lowkiq.rules.models import QueueSpec, ShardRef, shard_of
from celery_lowkiq.rules.views import Try
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes

_LINE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\t(-?\d{1,9})\t([^\t]*)\t(.*)")


def read_tries(client: Client, queue: QueueSpec, job_id: str) -> tuple[Try, ...]:
    """Return the last tries of a job, oldest first; foreign lines are skipped. Raises StoreError."""
    shard = ShardRef(queue.name, shard_of(job_id, queue.shards))
    (log,) = client.commands([("HGET", shard_keys(shard)["tries"], id_bytes(job_id))])
    lines = map(_LINE.fullmatch, (log or b"").decode("utf-8", "replace").split("\n"))
    return tuple(Try(float(line[1]), int(line[2]), line[3], line[4]) for line in lines if line)
