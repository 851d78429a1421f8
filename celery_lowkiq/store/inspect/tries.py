"""The log of a failing job's tries; ``scripts/lib/tries.lua`` writes it."""

from __future__ import annotations

import re

from celery_lowkiq.rules.models import QueueSpec, ShardRef, shard_of
from celery_lowkiq.rules.text import error_line
from celery_lowkiq.rules.views import Try
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes

#: What is kept of an error, in bytes.
MAX_TEXT = 160
_LINE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\t(-?\d{1,9})\t([^\t]*)\t(.*)")


def try_text(error: str | None) -> bytes:
    """Of an error its one line, as the log keeps it."""
    words = " ".join(error_line(error or "").split())
    return words.encode("utf-8", "backslashreplace")[:MAX_TEXT]


def read_tries(client: Client, queue: QueueSpec, job_id: str) -> tuple[Try, ...]:
    """The last tries of a job, oldest first, without what was planted there. Raises StoreError."""
    shard = ShardRef(queue.name, shard_of(job_id, queue.shards))
    (log,) = client.commands([("HGET", shard_keys(shard)["tries"], id_bytes(job_id))])
    found = map(_LINE.fullmatch, (log or b"").decode("utf-8", "replace").split("\n"))
    return tuple(Try(float(one[1]), int(one[2]), one[3], one[4]) for one in found if one)
