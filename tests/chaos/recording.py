"""Writes down what a node asks of the store about ownership, and what it is answered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from celery import Celery

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.claims import Claim, ClaimRequest, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, StoreError
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Disposition, Lease, LeaseState, Renewed, ShardRef
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.worker.lane import Lane
from celery_lowkiq.worker.owned_shard import OwnedShard
from tests.chaos.journal import Journal


class Recording:
    """The node's journal, as its store and its task share it.

    The context of a lane has the claim; a coroutine that runs for the lane inherits it.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._claim: ContextVar[tuple[Lease, int, float] | None] = ContextVar("claim", default=None)

    def record(self, app: Celery) -> None:
        """Record the stores that the app opens for its workers."""
        context: Any = context_of(app)
        open_store = context.open_store
        context.open_store = lambda connections: RecordedStore(open_store(connections), self)
        self._record_lanes()

    def _record_lanes(self) -> None:
        """Which lane, by its thread, serves a shard from when to when."""
        lane: Any = Lane
        serve, drop, note = lane.serve, lane.drop, self.journal.note

        def serve_and_note(self: Any, owned: OwnedShard) -> None:
            serve(self, owned)
            note("serve", thread=self.thread.ident, queue=owned.shard.queue, shard=owned.shard.index)

        def drop_and_note(self: Any, shard: ShardRef) -> None:
            note("drop", thread=self.thread.ident, queue=shard.queue, shard=shard.index)
            drop(self, shard)

        lane.serve, lane.drop = serve_and_note, drop_and_note

    def claims(self, lease: Lease, request: int) -> None:
        """A claim is asked for; asked again, it may have been answered the first time."""
        claim = self._claim.get()
        if claim is None or claim[:2] != (lease, request):
            self._claim.set((lease, request, time.monotonic()))

    def claimed_at(self) -> float:
        """When this lane first asked for what it runs now."""
        claim = self._claim.get()
        assert claim is not None
        return claim[2]


class RecordedStore:
    """A RedisStore whose leases, claims and settles are written down."""

    def __init__(self, store: RedisStore, recording: Recording) -> None:
        self._store = store
        self._recording = recording
        self._note = recording.journal.note
        self._watches = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState | None]:
        """As the store's; the first time, all leases that the node does not have."""
        states = self._store.observe(shards)
        if not self._watches:
            self._watches = True
            self._note("watch")
        return states

    def acquire_all(self, wanted: Sequence[LeaseWatch], owner: str) -> list[Lease | LowkiqError]:
        """As the store's."""
        called_at = time.monotonic()
        answers = self._store.acquire_all(wanted, owner)
        for lease in answers:
            if isinstance(lease, Lease):
                self._note("acquire", called_at=called_at, owner=owner, **_place(lease))
        return answers

    def renew(self, leases: Sequence[Lease], stopping: bool, turn: int) -> list[Renewed]:
        """As the store's."""
        called_at = time.monotonic()
        renewed = self._store.renew(leases, stopping, turn)
        epochs: dict[str, dict[int, int]] = {}
        for lease, ours in zip(leases, renewed, strict=True):
            if ours:
                epochs.setdefault(lease.shard.queue, {})[lease.shard.index] = lease.epoch
        for queue, of_queue in epochs.items():
            self._note("renew", called_at=called_at, queue=queue, epochs=of_queue)
        return renewed

    def release(self, lease: Lease, unsettled: bool = False) -> bool | None:
        """As the store's."""
        called_at = time.monotonic()
        released = self._store.release(lease, unsettled)
        if released:
            self._note("release", called_at=called_at, **_place(lease))
        return released

    def exchange(
        self, settle: SettleRequest | None, claim: ClaimRequest | None
    ) -> tuple[SettleReply | StoreError | None, Claim | StoreError | None]:
        """As the store's."""
        called_at = time.monotonic()
        if claim is not None:
            self._recording.claims(claim.lease, claim.request)
        settled, claimed = self._store.exchange(settle, claim)
        if settle is not None and isinstance(settled, SettleReply):
            for kind, happened in (("settle", settled.accepted), ("release", settled.released)):
                if happened:
                    ended = {one.id for one in settle.settlements if one.disposition is Disposition.DONE}
                    done = sorted(ended & settled.accepted)
                    self._note(kind, called_at=called_at, done=done, **_place(settle.lease))
        return settled, claimed


def _place(lease: Lease) -> dict[str, Any]:
    return {"queue": lease.shard.queue, "shard": lease.shard.index, "epoch": lease.epoch}
