"""How the ids of a queue are dealt to its shards."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

#: Maximum number of shards of a queue.
MAX_SHARDS = 4096


def shard_of(job_id: str, shards: int) -> int:
    """Return the index of an id's shard: ``crc32(id) % shards``, as in Lowkiq."""
    return zlib.crc32(job_id.encode("utf-8", "surrogateescape")) % shards


@dataclass(frozen=True)
class Layout:
    """The number of shards that ids are dealt by; during a migration also the ``former`` one."""

    shards: int
    former: int | None = None

    @classmethod
    def parse(cls, route: str) -> Layout | None:
        """Return the layout of a stored route; None for other text."""
        former, arrow, shards = route.rpartition(">")
        if arrow:
            return cls(int(shards), int(former)) if is_count(former) and is_count(shards) else None
        return cls(int(shards)) if is_count(shards) else None

    @property
    def route(self) -> str:
        """The layout as shards and their queue store it: ``24``, or ``24>48`` during a migration."""
        return str(self.shards) if self.former is None else f"{self.former}>{self.shards}"

    @property
    def count(self) -> int:
        """Number of shards that may have jobs."""
        return max(self.shards, self.former or 0)

    def home(self, job_id: str) -> int:
        """Return the index of the shard of an id."""
        return shard_of(job_id, self.shards)

    def former_home(self, job_id: str) -> int | None:
        """Return the index of the other shard that an id had before the migration; None without one."""
        if self.former is None:
            return None
        index = shard_of(job_id, self.former)
        return None if index == self.home(job_id) else index


def is_count(text: str) -> bool:
    """Whether a text is a number of shards."""
    return text.isdecimal() and text.isascii() and len(text) < 5 and 0 < int(text) <= MAX_SHARDS
