"""What all lanes of a node share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lowkiq.rules.clock import Clock

from .exclusion import Exclusion
from .outage import Outage
from .owned_shard import Held
from .ports import Host, Meter, Runner, Store
from .rate_limiter import Limits

if TYPE_CHECKING:
    from .lane.due_poll import Survey

#: A shard on which a script fails for a reason of its own is left alone for so many s.
PARKED = 5.0
#: Exit status after a task raised what ends its worker, and of a process that a run forked.
CRASHED = 70


@dataclass(frozen=True)
class Surroundings:
    """Passed to each of them."""

    store: Store
    runner: Runner
    host: Host
    clock: Clock
    outage: Outage
    exclusion: Exclusion
    limits: Limits
    meter: Meter
    poll_interval: float
    lease_seconds: float
    #: Most batches that a lane claims at once.
    window: int
    survey: Callable[[], Survey]
    #: Told when a shard turns out to be another node's.
    lost: Callable[[Held], None]
    #: Held by the lane that runs a suspect.
    suspects: threading.Lock
    #: Told when a lane has ended, or is done with a shard that was taken from it.
    freed: Callable[[], None]
