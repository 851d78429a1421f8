"""Reads of the shards of a listing. Those whose masters are away are left out, and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.text import by_master
from celery_lowkiq.store.leases.heartbeats import seconds
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.cursors import dump_missing, load_missing
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.script import ScriptCall


class ShardReads:
    """Reads the shards of a queue for one listing, or for an action on all that it lists.

    On a cluster, a shard whose master is away answers None, and is not asked again. Methods raise StoreError;
    on one server, and when all masters are away, StoreUnavailable.
    """

    def __init__(self, client: Client, queue: QueueSpec, after: str | None = None) -> None:
        """``after``: the cursor of the page before, which names shards that it lacks. Raises InvalidCall."""
        self.client = client
        self.shards: tuple[ShardRef, ...] = queue.shard_refs()
        self._away: set[ShardRef] = set()
        self._before = load_missing(after) if after is not None else frozenset()

    @property
    def missing(self) -> dict[ShardRef, str]:
        """The shards that were left out, here or on a page before, with the addresses of their masters."""
        if not (self._away or self._before):
            return {}
        found = (one for one in self.shards if one in self._away or one.index in self._before)
        return {shard: self.client.master_name(shard) for shard in found}

    @property
    def away(self) -> dict[str, str]:
        """The names of the shards that were left out, by the address of their master."""
        return by_master(self.missing)

    def cursor(self, position: str | None) -> str | None:
        """Return the cursor of the next page, which names the shards that were left out until here."""
        if position is None or not (self._away or self._before):
            return position
        return dump_missing(position, self._before.union(shard.index for shard in self._away))

    def commands(self, shards: Sequence[ShardRef | None], commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a command for each of the shards, in one round trip.

        That of no shard (None) may be answered with a StoreUnavailable.
        """
        return self._read(self.client.command_answers, shards, commands)

    def calls(self, shards: Sequence[ShardRef], calls: Sequence[ScriptCall]) -> list[Any]:
        """Run a script for each of the shards, in one round trip."""
        return self._read(self.client.answers, shards, calls)

    def clocks(self) -> dict[ShardRef, float]:
        """Return the time (Unix s) of the master of each shard that is not left out, in one round trip.

        Compare a shard's times with its own master's clock only: those of two masters may differ.
        """
        # On one server, all shards are one part.
        parts = self.client.slices(self.shards, len(self.shards))
        asked = [part[0] for part in parts for _ in range(2)]
        commands = [
            command
            for part in parts
            for command in (("HGET", shard_keys(part[0])["meta"], "shards"), ("TIME",))
        ]
        times = self.commands(asked, commands)[1::2]
        return {
            shard: seconds(time)
            for part, time in zip(parts, times, strict=True)
            if time is not None
            for shard in part
        }

    def _read(
        self, ask: Callable[[list[Any]], list[Any]], shards: Sequence[ShardRef | None], asked: Sequence[Any]
    ) -> list[Any]:
        if self._away:
            there = [shard not in self._away for shard in shards]
            replies = iter(ask([one for one, is_there in zip(asked, there, strict=True) if is_there]))
            found = [next(replies) if is_there else None for is_there in there]
        else:
            found = ask(list(asked))
        errors = {
            n: reply
            for n, reply in enumerate(found)
            if isinstance(reply, StoreUnavailable) and shards[n] is not None
        }
        if not errors:
            return found
        # A dead master is noted by now: its other shards need no attempt of their own.
        self._away.update(one for one in self.shards if self.client.is_away(one))
        self._away.update(shard for n in errors if (shard := shards[n]) is not None)
        if len(self._away) == len(self.shards):
            raise next(iter(errors.values()))
        return [None if n in errors else reply for n, reply in enumerate(found)]
