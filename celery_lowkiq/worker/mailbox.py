"""Messages of lanes to the ownership thread, which alone changes what the node owns."""

from __future__ import annotations

import threading
from collections import deque

from .owned_shard import OwnedShard


class OwnershipMailbox:
    """Lost shards, and an event that ends the wait for the next turn. Written by any thread."""

    def __init__(self) -> None:
        self._lost: deque[OwnedShard] = deque()
        self._wake = threading.Event()

    def report_lost(self, owned: OwnedShard) -> None:
        """Report that another node owns the shard; read in the next turn."""
        owned.lost.set()
        self._lost.append(owned)

    def take_lost(self) -> list[OwnedShard]:
        """Remove and return the lost shards."""
        return [self._lost.popleft() for _ in range(len(self._lost))]

    def wake(self) -> None:
        """Start the next turn now: a lane ended, a shard is free, or the node is to change what it serves."""
        self._wake.set()

    def begin_turn(self) -> None:
        """Forget earlier wake-ups: the turn that starts now answers them."""
        self._wake.clear()

    def wait(self, seconds: float) -> None:
        """Wait for the next turn, at most ``seconds``."""
        self._wake.wait(seconds)
