"""Subscription of one thread to one pub/sub channel."""

from __future__ import annotations

import redis
from redis import exceptions

from .client import store_error
from .connect import apart

#: Timeout in s for the confirmation of a subscription.
SUBSCRIBE_TIMEOUT = 5.0


class Listener:
    """Receives messages published after it was created. Use it in a ``with`` block."""

    def __init__(self, client: redis.Redis, channel: str) -> None:
        """Subscribe. Raises StoreUnavailable."""
        # Its own connection: the waiting thread also sends commands, and would block on a pool of one.
        self._client = apart(client)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            self._pubsub.subscribe(channel)
            # Wait for the confirmation, so that no message is missed after a later read of the state.
            self._pubsub.get_message(timeout=SUBSCRIBE_TIMEOUT)
        except (exceptions.RedisError, OSError) as error:
            self._close()
            raise store_error(error) from error

    def wait(self, timeout: float) -> bool:
        """Block until a message arrives, at most ``timeout`` s; whether one did. Raises StoreUnavailable."""
        try:
            return self._pubsub.get_message(timeout=timeout) is not None
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        self._pubsub.close()
        self._client.connection_pool.disconnect()
