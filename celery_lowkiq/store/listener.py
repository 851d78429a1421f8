"""Listeners of pub/sub, and announcements that wake lanes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_lowkiq.rules.errors import StoreUnavailable, SubscriptionLost
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.errors import store_error
from celery_lowkiq.store.keys import channel, queue_of_channel
from celery_lowkiq.store.records import reads_replies

# Subscription to pub/sub channels.

#: Timeout in s for the confirmation of a subscription.
SUBSCRIBE_TIMEOUT = 5.0
#: On a cluster, after how many s without a message the master gets a PING.
CHECK_SECONDS = 0.25
#: Timeout in s for its answer.
ANSWER = 0.5
#: After how many s a master with messages gets a PING.
ASK_AGAIN = 5.0
#: After how many s an answer is late, as the messages of that master are.
LATE = 0.1
#: For how many s a subscription stays with a master that answers late: there may be none that does not.
STAYS = 30.0
CLOSED = "the subscription is closed"


@reads_replies
class Listener(AbstractContextManager["Listener"]):
    """Receives messages published after it was created. Use it in a ``with`` block, or close it."""

    def __init__(self, client: Client, *channels: str) -> None:
        """Subscribe. Raises StoreUnavailable, AccessDenied."""
        self._cluster = client.cluster
        try:
            # Its own connection: the waiting thread also sends commands, and would block on a pool of one.
            self._client = client.servers.apart()
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        #: Monotonic times (s) of the start, of the last message, and, on a cluster, of the end of the last
        #: wait, of the last question, and of the one that the master has not answered.
        self._since = self._heard_at = self._left_at = self._last_asked_at = time.monotonic()
        self._asked_at: float | None = None
        self._closed = False
        self._closing = threading.Lock()
        try:
            self._pubsub.subscribe(*(client.prefix + channel for channel in channels))
            # Wait for the confirmation: missing permissions raise here, and later messages are not missed.
            self._pubsub.get_message(timeout=SUBSCRIBE_TIMEOUT)
        except (exceptions.RedisError, OSError) as error:
            if self._cluster is not None:
                self._cluster.note_lost(self._client)
            self.close()
            raise store_error(error) from error

    def wait(self, timeout: float) -> dict[str, Any] | None:
        """Return the next message, None after ``timeout`` s.

        Raises StoreUnavailable when the connection is lost or was closed. On a cluster, raises
        SubscriptionLost when the connection is lost, or when the master is unreachable or late.
        """
        if self._closed:
            raise StoreUnavailable(CLOSED)
        try:
            if self._cluster is not None:
                return self._next_of_cluster(self._cluster, timeout)
            return self._next(timeout)
        except (exceptions.RedisError, OSError) as error:
            found = store_error(error)
            if isinstance(found, StoreUnavailable) and self._cluster is not None:
                found = self._lost(str(found))
            raise found from error
        except Exception as error:
            # redis-py raises various errors when another thread closes the connection.
            if not self._closed:
                raise
            raise StoreUnavailable(CLOSED) from error
        finally:
            if self._closed:
                # redis-py may have connected again.
                self.close()

    def _next(self, timeout: float) -> dict[str, Any] | None:
        message: dict[str, Any] | None = self._pubsub.get_message(timeout=timeout)
        return message

    def _next_of_cluster(self, cluster: ClusterClient, timeout: float) -> dict[str, Any] | None:
        """Wait, but leave an unresponsive master: each master carries the same messages."""
        began = time.monotonic()
        deadline = began + timeout
        if self._asked_at is not None:
            # The time that the caller took since is no delay of the answer.
            self._asked_at += began - self._left_at
        while True:
            message = self._next(max(0.0, min(CHECK_SECONDS, deadline - time.monotonic())))
            now = self._left_at = time.monotonic()
            if message is None:
                self._check_master(cluster, now)
            elif message["type"] == "pong":
                self._note_answer(now)
            else:
                self._heard_at = now
                if self._asked_at is None and now - self._last_asked_at >= ASK_AGAIN:
                    self._ask_master(now)
                return message
            if now >= deadline:
                return None

    def _check_master(self, cluster: ClusterClient, now: float) -> None:
        if self._closed:
            # PING would connect again.
            raise StoreUnavailable(CLOSED)
        if cluster.is_lost(self._client):
            raise self._lost("Redis is not available: the master of the subscription is unreachable")
        if self._asked_at is None:
            if now - self._heard_at >= CHECK_SECONDS:
                self._ask_master(now)
        elif now - max(self._asked_at, self._heard_at) >= ANSWER:
            raise self._lost("Redis is not available: the master of the subscription does not respond")

    def _ask_master(self, now: float) -> None:
        self._asked_at = self._last_asked_at = now
        self._pubsub.ping()

    def _note_answer(self, now: float) -> None:
        asked_at, self._heard_at, self._asked_at = self._asked_at, now, None
        if asked_at is not None and now - asked_at > LATE and now - self._since > STAYS:
            raise self._lost("the master of the subscription answers late")

    def _lost(self, text: str) -> SubscriptionLost:
        if self._cluster is not None and not self._closed:
            self._cluster.note_lost(self._client)
        return SubscriptionLost(text)

    def close(self) -> None:
        """Close the connection; a waiting thread raises StoreUnavailable."""
        self._closed = True
        # Two threads may close at once, for which redis-py is not made.
        with self._closing:
            self._pubsub.close()
            self._client.connection_pool.disconnect()

    def __exit__(self, *error: object) -> None:
        self.close()


# Subscription to announcements of pushes (Redis pub/sub).


@reads_replies
class PushSubscription(Listener):
    """One connection that listens to the queues' channels."""

    def __init__(self, client: Client, queues: Sequence[str]) -> None:
        """Raises StoreUnavailable, AccessDenied."""
        super().__init__(client, *map(channel, queues))
        # Disable automatic reconnects: announcements meanwhile would be missed.
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
