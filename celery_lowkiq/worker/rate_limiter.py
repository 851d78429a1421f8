"""Which queues of a node are limited, and when the next run of one may begin."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.rate import TokenRequest, Tokens, asks_again


class Limits:
    """What the lanes of a node know of the tokens together. A queue without a rate is never asked about."""

    def __init__(self, clock: Clock, owner: str, poll_interval: float, rates: Mapping[str, float]) -> None:
        """``rates``: runs a second, by limited queue."""
        self._clock = clock
        self._owner = owner
        self._poll_interval = poll_interval
        self._rates = dict(rates)
        self._numbers = itertools.count(1)
        #: Monotonic time at which asking is of use again, by queue that had no token.
        self._closed_until: dict[str, float] = {}

    def limit(self, queue: str, rate: float | None) -> None:
        """From now on, a queue has this rate (runs a second), or none."""
        if rate is None:
            self._rates.pop(queue, None)
        else:
            self._rates[queue] = rate
        self._closed_until.pop(queue, None)

    def request(self, queue: str, lane: str, *, wanted: int = 0, surplus: int = 0) -> TokenRequest | None:
        """What to ask the store for; None for a queue that is not limited."""
        rate = self._rates.get(queue)
        if rate is None:
            return None
        return TokenRequest(queue, f"{self._owner} {lane}", next(self._numbers), rate, wanted, surplus)

    def learn(self, queue: str, tokens: Tokens) -> None:
        """An answer of the store."""
        if tokens.wait > 0:
            self._closed_until[queue] = self._clock.monotonic() + asks_again(tokens, self._poll_interval)
        else:
            self._closed_until.pop(queue, None)

    def closed(self) -> dict[str, float]:
        """Queues that have no token now, and in how many s to ask again."""
        if not self._closed_until:
            return {}
        now = self._clock.monotonic()
        return {queue: until - now for queue, until in list(self._closed_until.items()) if until > now}
