"""Rate limits of a node's queues, and when a queue without tokens may be asked again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.rate import TokenRequest, Tokens


class RateLimiter:
    """Shared by the lanes of a node; the tokens are in Redis. Unlimited queues cost no request."""

    def __init__(self, clock: Clock, owner: str, poll_interval: float, rates: Mapping[str, float]) -> None:
        """``rates``: runs a second, by limited queue."""
        self._clock = clock
        self._owner = owner
        self._poll_interval = poll_interval
        self._rates = dict(rates)
        self._numbers = itertools.count(1)
        self._exhausted_until: dict[str, float] = {}

    def set_rate(self, queue: str, rate: float | None) -> None:
        """Limit a queue to ``rate`` runs a second; None removes the limit."""
        if rate is None:
            self._rates.pop(queue, None)
        else:
            self._rates[queue] = rate
        self._exhausted_until.pop(queue, None)

    def request(self, queue: str, lane: str, *, wanted: int = 0, surplus: int = 0) -> TokenRequest | None:
        """Return the request for the store; None for a queue that is not limited."""
        rate = self._rates.get(queue)
        if rate is None:
            return None
        return TokenRequest(queue, f"{self._owner} {lane}", next(self._numbers), rate, wanted, surplus)

    def record(self, queue: str, tokens: Tokens) -> None:
        """Record an answer of the store."""
        if tokens.wait > 0:
            # One poll at most, since other nodes may return tokens.
            self._exhausted_until[queue] = self._clock.monotonic() + min(tokens.wait, self._poll_interval)
        else:
            self._exhausted_until.pop(queue, None)

    def park(self, queue: str, seconds: float) -> None:
        """Leave a queue alone for ``seconds``: the master that has its tokens is away."""
        self._exhausted_until[queue] = self._clock.monotonic() + seconds

    def exhausted_until(self, now: float) -> dict[str, float]:
        """Return the queues without a token, and the monotonic time at which to ask again."""
        if not self._exhausted_until:
            return {}
        return {queue: until for queue, until in list(self._exhausted_until.items()) if until > now}
