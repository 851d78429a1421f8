"""Subscription to announcements of pushes (Redis pub/sub)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import channel, queue_of_channel
from celery_lowkiq.store.scripts.listener import Listener
from celery_lowkiq.store.scripts.replies import reads_replies


@reads_replies
class PushSubscription(Listener):
    """One connection that listens to the queues' channels."""

    def __init__(self, client: Client, queues: Sequence[str]) -> None:
        """Raises StoreUnavailable, AccessDenied."""
        super().__init__(client, *map(channel, queues))
        # Disable silent reconnects: announcements meanwhile would be missed.
        self._pubsub.connection.retry = Retry(NoBackoff(), 0)

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        """Return the next announcement within ``timeout`` s: a shard, and its new smallest ``perform_in`` or
        None when the shard was released. Raises StoreUnavailable when the connection is lost or closed.
        """
        message = self.wait(timeout)
        if message is None or message["type"] != "message":
            return None
        return _announcement(message["channel"], message["data"])


def _announcement(name: bytes, data: bytes) -> tuple[ShardRef, float | None] | None:
    index, _, perform_in = data.partition(b" ")
    try:
        due = None if perform_in == b"released" else float(perform_in)
        shard = ShardRef(queue_of_channel(name.decode()), int(index))
    except ValueError:
        return None
    return (shard, due) if due is None or math.isfinite(due) else None
