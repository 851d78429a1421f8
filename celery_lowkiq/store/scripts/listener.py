"""One channel of Redis's pub/sub, for one thread that waits for something to be said there."""

from __future__ import annotations

import redis
from redis import exceptions

from .client import store_error
from .connect import apart

#: How long Redis may take to confirm a subscription, in s.
CONFIRMED = 5.0


class Listener:
    """Hears what is published from its making on. Use it in a ``with`` block."""

    def __init__(self, client: redis.Redis, channel: str) -> None:
        """Raises StoreUnavailable."""
        # The thread that waits also asks: with one connection for both it would wait for itself.
        self._client = apart(client)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            self._pubsub.subscribe(channel)
            # The confirmation: what is read from elsewhere from now on, is not older than what is heard.
            self._pubsub.get_message(timeout=CONFIRMED)
        except (exceptions.RedisError, OSError) as error:
            self._close()
            raise store_error(error) from error

    def wait(self, timeout: float) -> bool:
        """Block until something is said, at most ``timeout`` s. Whether it was. Raises StoreUnavailable."""
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
