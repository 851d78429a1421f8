"""Subscription to announcements of pushes (Redis pub/sub)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import store_error
from celery_lowkiq.store.scripts.keys import channel, queue_of_channel

#: Timeout in s for the confirmation of a subscription.
CONFIRMED = 5.0


class PushSubscription:
    """One connection that listens to the queues' channels."""

    def __init__(self, client: redis.Redis, queues: Sequence[str]) -> None:
        """Raises StoreUnavailable, AccessDenied."""
        self._closed = False
        self._reading = threading.Lock()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            # A Redis that is loading accepts subscriptions, but cannot run commands.
            client.ping()
            self._pubsub.subscribe(*(channel(queue) for queue in queues))
            # Read the confirmation, so that missing permissions raise AccessDenied here.
            self._pubsub.get_message(timeout=CONFIRMED)
            # Disable silent reconnects: announcements meanwhile would be missed.
            self._retry = self._pubsub.connection.retry
            self._pubsub.connection.retry = Retry(NoBackoff(), 0)
        except (exceptions.RedisError, OSError) as error:
            # A log handler that keeps the error would also keep the connection.
            self._pubsub.close()
            raise store_error(error) from error

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        """Return the next announcement within ``timeout`` s: a shard, and its new smallest ``perform_in`` or
        None when the shard was released. Raises StoreUnavailable when the connection is lost or closed.
        """
        try:
            with self._reading:
                return self._wait_pushed(timeout)
        finally:
            if self._closed:
                self._give_back()

    def _wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        if self._closed:
            raise StoreUnavailable("the subscription is closed")
        try:
            message = self._pubsub.get_message(timeout=timeout)
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error
        except Exception as error:
            # redis-py raises various errors when another thread closes the connection.
            if not self._closed:
                raise
            raise StoreUnavailable("the subscription is closed") from error
        if message is None or message["type"] != "message":
            return None
        return _announcement(message["channel"], message["data"])

    def close(self) -> None:
        """Close the connection; a waiting thread raises StoreUnavailable."""
        self._closed = True
        connection = self._pubsub.connection
        if connection is not None:
            connection.disconnect()
        self._give_back()

    def _give_back(self) -> None:
        """Return the connection to its pool, unless a thread reads from it, which then does this."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            if self._pubsub.connection is not None:
                self._pubsub.connection.retry = self._retry
                self._pubsub.close()
        finally:
            self._reading.release()


def _announcement(name: bytes, data: bytes) -> tuple[ShardRef, float | None] | None:
    """Parse a message; None for one that other programs published."""
    index, _, perform_in = data.partition(b" ")
    try:
        due = None if perform_in == b"released" else float(perform_in)
        shard = ShardRef(queue_of_channel(name.decode()), int(index))
    except ValueError:
        return None
    return (shard, due) if due is None or math.isfinite(due) else None
