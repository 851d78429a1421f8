"""What a soak run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from celery_lowkiq.rules.errors import ConfigurationError
from tests.chaos.options import EXCLUSIONS


@dataclass(frozen=True)
class Options:
    """All times are in s. ``deploy_every`` is also the length of the windows that are compared."""

    seconds: float = 3600.0
    deploy_every: float = 600.0
    kill_every: float = 300.0
    #: Calls a second of all queues together.
    rate: float = 120.0
    #: Nodes that are deployed and killed; one more, the resident, lives through the run.
    nodes: int = 4
    lanes: int = 4
    lease: float = 10.0
    exclusion: str = "strict"
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.exclusion not in EXCLUSIONS:
            raise ConfigurationError(
                f"exclusion={self.exclusion!r} is invalid: expected {' or '.join(EXCLUSIONS)}"
            )
        for name in ("seconds", "deploy_every", "kill_every", "rate", "nodes", "lanes"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"{name}={getattr(self, name)!r} is invalid: expected a number above 0"
                )
        if not 0.5 <= self.lease <= 60:
            raise ConfigurationError(f"lease={self.lease!r} is invalid: expected seconds from 0.5 to 60")
