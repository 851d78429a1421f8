"""Announcements of pushes, over Redis pub/sub."""

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

#: How long the answer to a subscription is waited for, in s.
CONFIRMED = 5.0


class PushSubscription:
    """One connection that listens to the queues' channels."""

    def __init__(self, client: redis.Redis, queues: Sequence[str]) -> None:
        """Raises StoreUnavailable, AccessDenied."""
        self._closed = False
        self._reading = threading.Lock()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            # A Redis that is loading takes subscriptions, though it cannot serve.
            client.ping()
            self._pubsub.subscribe(*(channel(queue) for queue in queues))
            # Reads the answer: a user who may not listen is told so now, not with the first announcement.
            self._pubsub.get_message(timeout=CONFIRMED)
            # What is announced during a silent reconnect would be missed: an error has to say so.
            self._retry = self._pubsub.connection.retry
            self._pubsub.connection.retry = Retry(NoBackoff(), 0)
        except (exceptions.RedisError, OSError) as error:
            # Not left to the garbage collector: a log handler that keeps the error would keep all this.
            self._pubsub.close()
            raise store_error(error) from error

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        """The next announcement within ``timeout`` s: a shard and its new smallest ``perform_in``, or
        None for a shard that was released.

        Raises StoreUnavailable when the connection is lost, or was closed.
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
            # redis-py is not made for a connection that another thread closes, and fails in many ways.
            if not self._closed:
                raise
            raise StoreUnavailable("the subscription is closed") from error
        if message is None or message["type"] != "message":
            return None
        return _announcement(message["channel"], message["data"])

    def close(self) -> None:
        """Free the connection; a thread that waits gets StoreUnavailable."""
        self._closed = True
        connection = self._pubsub.connection
        if connection is not None:
            connection.disconnect()
        self._give_back()

    def _give_back(self) -> None:
        """The connection, to its pool. A thread that reads from it just now does this when it ends."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            if self._pubsub.connection is not None:
                self._pubsub.connection.retry = self._retry
                self._pubsub.close()
        finally:
            self._reading.release()


def _announcement(name: bytes, data: bytes) -> tuple[ShardRef, float | None] | None:
    """Anyone may publish: what is not of our making is no announcement."""
    index, _, perform_in = data.partition(b" ")
    try:
        due = None if perform_in == b"released" else float(perform_in)
        shard = ShardRef(queue_of_channel(name.decode()), int(index))
    except ValueError:
        return None
    return (shard, due) if due is None or math.isfinite(due) else None
