"""Token bucket of a rate-limited queue: each run takes a token.

The bucket is in Redis, shared by all nodes; this module computes when a token is available.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Capacity of a bucket, in seconds of its rate, but at least one token.
BURST_SECONDS = 0.1
#: Maximum seconds between token requests of a node with a due job, unless its polls are rarer.
ASKED = 60.0


@dataclass(frozen=True)
class TokenRequest:
    """A request to return ``surplus`` tokens and take at most ``wanted``; ``rate`` in tokens per second.

    ``number`` grows with each request of a ``holder``; a repeated number gets the same answer.
    """

    queue: str
    holder: str
    number: int
    rate: float
    wanted: int = 0
    surplus: int = 0


@dataclass(frozen=True)
class Tokens:
    """The tokens granted, and ``wait``: seconds until the next token, 0 when one is available."""

    granted: int
    wait: float


def capacity(rate: float) -> float:
    """Return the maximum number of tokens in a bucket."""
    return max(1.0, BURST_SECONDS * rate)


def seconds_to_token(tokens_then: float, seconds: float, rate: float) -> float:
    """Return the seconds until a token is available, ``seconds`` after the bucket had ``tokens_then``."""
    tokens = min(capacity(rate), tokens_then + max(0.0, seconds) * rate)
    return 0.0 if tokens >= 1 else (1 - tokens) / rate


def token_at(full_at: float, rate: float) -> float:
    """Return the Unix time (s) of the next token of a bucket that is full at ``full_at``."""
    return full_at - (capacity(rate) - 1) / rate


def run_count(jobs: int, batch_size: int) -> int:
    """Return the number of runs of a claim."""
    return -(-jobs // batch_size)
