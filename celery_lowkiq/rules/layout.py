"""The layout of a queue: which shard an id lies in, also while the number of shards changes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The number of shards that ids are dealt by now, and in a migration the one that they were dealt by."""

    shards: int
    former: int | None = None

    @classmethod
    def parse(cls, route: str) -> Layout:
        """Parse a route: ``24``, or ``24>48`` in a migration."""
        former, _, shards = route.rpartition(">")
        return cls(int(shards), int(former) if former else None)

    @property
    def route(self) -> str:
        """The text that shards compare."""
        return str(self.shards) if self.former is None else f"{self.former}>{self.shards}"

    @property
    def count(self) -> int:
        """How many shards exist."""
        return max(self.shards, self.former or 0)

    def home(self, job_id: str) -> int:
        """The index of an id's shard."""
        return _hash(job_id) % self.shards

    def former_home(self, job_id: str) -> int | None:
        """The index of the shard that an id is moving from; None when it stays, or outside a migration."""
        if self.former is None:
            return None
        number = _hash(job_id)
        former = number % self.former
        return None if former == number % self.shards else former


def _hash(job_id: str) -> int:
    return zlib.crc32(job_id.encode("utf-8", "surrogateescape"))
