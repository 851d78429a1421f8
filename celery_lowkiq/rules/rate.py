"""How many runs of a limited queue may begin. Each costs a token; tokens come at the queue's rate.

The bucket itself is Redis's, one for all nodes; a node asks it, and knows when asking again is of use.
"""

from __future__ import annotations

from dataclasses import dataclass

#: So many seconds' tokens gather while nobody takes any, but at least one.
BURST = 0.1
#: A node with a due job and without a token asks again within so many s, unless its polls are rarer.
ASKED = 60.0


@dataclass(frozen=True)
class TokenRequest:
    """``surplus`` tokens back, then at most ``wanted`` of them. The same ``number`` of a ``holder``, which
    grows, gives the same answer. ``rate`` in tokens a second.
    """

    queue: str
    holder: str
    number: int
    rate: float
    wanted: int = 0
    surplus: int = 0


@dataclass(frozen=True)
class Tokens:
    """What was granted, and in how many s there is a token again; 0 when there is one."""

    granted: int
    wait: float


def capacity(rate: float) -> float:
    """How many tokens gather at most."""
    return max(1.0, BURST * rate)


def seconds_to_token(left: float, seconds: float, rate: float) -> float:
    """In how many s there is a token, ``seconds`` after the bucket was seen to have ``left`` of them."""
    tokens = min(capacity(rate), left + max(0.0, seconds) * rate)
    return 0.0 if tokens >= 1 else (1 - tokens) / rate


def token_at(full_at: float, rate: float) -> float:
    """When there is a token in a bucket that is full at ``full_at`` (Unix s)."""
    return full_at - (capacity(rate) - 1) / rate


def runs_of(jobs: int, batch_size: int) -> int:
    """How many runs a claim makes."""
    return -(-jobs // batch_size)


def asks_again(tokens: Tokens, poll_interval: float) -> float:
    """In how many s: not later than the next poll, since others may give tokens back."""
    return min(tokens.wait, poll_interval)
