"""What a chaos run is asked to do."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Literal

from celery_lowkiq.rules.errors import ConfigurationError

#: Every kind of fault on one Redis; the first five are on by default.
FAULTS = ("kill", "freeze", "redis", "cut", "rollback", "clock", "rebalance", "reshard", "failover")
DEFAULT_FAULTS = frozenset(FAULTS[:5])
#: Faults of a cluster.
OF_A_CLUSTER = frozenset({"master", "stale", "behind", "slot", "abort", "slots", "masters"})
#: Faults that need a Redis of our own.
OWN_REDIS = frozenset({"redis", "rollback", "clock", "failover"})
#: What is on by default on a cluster.
ON_A_CLUSTER = OF_A_CLUSTER | {"kill", "freeze", "cut", "rebalance", "reshard"}
#: A migration doubles them.
MAX_CHAOS_SHARDS = 500
EXCLUSIONS = ("cooperative", "strict")
#: Module with the workers' app.
APP = "tests.chaos.app"


@dataclass(frozen=True)
class Options:
    """``seconds`` is how long faults are made, ``lease`` the lease time T, ``pause`` the time between two
    faults on average; all in s.
    """

    seed: int
    nodes: int = 4
    seconds: float = 60.0
    lease: float = 1.0
    pause: float = 0.4
    exclusion: str = "cooperative"
    faults: frozenset[str] = DEFAULT_FAULTS
    #: A Redis of the user's; None starts one.
    redis_url: str | None = None
    lanes: int = 4
    shards: int = 12
    ids: int = 100
    app: str = APP
    #: Whether the task is an ``async def``.
    awaits: bool = False
    #: "hold": some payloads die, hold their ids, and are requeued a little later.
    when_dead: Literal["go_on", "hold"] = "go_on"
    #: Whether the store is a cluster of our own.
    cluster: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        known = (set(FAULTS) - OWN_REDIS) | OF_A_CLUSTER if self.cluster else set(FAULTS)
        unknown = self.faults - known
        if unknown:
            kind = "of a cluster" if self.cluster else "of one Redis"
            raise ConfigurationError(
                f"faults {', '.join(sorted(unknown))} are no faults {kind}: any of {', '.join(sorted(known))}"
            )
        if self.cluster and self.redis_url is not None:
            raise ConfigurationError("--cluster starts a cluster of its own: leave --redis out")
        if self.exclusion not in EXCLUSIONS:
            raise ConfigurationError(
                f"exclusion={self.exclusion!r} is not allowed: {' or '.join(EXCLUSIONS)}"
            )
        if self.nodes < 1 or self.seconds <= 0 or self.pause <= 0:
            raise ConfigurationError(
                "a run needs at least one node, some seconds, and a pause between faults"
            )
        if not 1 <= self.shards <= MAX_CHAOS_SHARDS:
            raise ConfigurationError(
                f"shards={self.shards} is not allowed: a number from 1 to {MAX_CHAOS_SHARDS}"
            )
        if not 0.5 <= self.lease <= 60:
            raise ConfigurationError(f"lease={self.lease:g} is not allowed: seconds from 0.5 to 60")

    def without(self, faults: Set[str]) -> Options:
        """The same without some faults."""
        return replace(self, faults=self.faults - faults)
