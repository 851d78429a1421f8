"""Dependencies and settings that all parts of a node's engine share."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from celery_lowkiq.rules.clock import Clock

from .exclusion import Exclusion
from .mailbox import OwnershipMailbox
from .outage import OutageTracker
from .ports import Host, Meter, Runner, Store
from .rate_limiter import RateLimiter


@dataclass(frozen=True)
class WorkerContext:
    """Passed to lanes and ownership."""

    store: Store
    runner: Runner
    host: Host
    clock: Clock
    outage: OutageTracker
    exclusion: Exclusion
    rate_limiter: RateLimiter
    meter: Meter
    #: What lanes tell the ownership thread.
    mailbox: OwnershipMailbox
    #: Held by the lane that runs a suspect: one at a time in a node.
    suspect_lock: threading.Lock
    owner: str
    poll_interval: float
    lease_seconds: float
    #: Maximum number of batches in one claim.
    window: int
