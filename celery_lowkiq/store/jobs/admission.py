"""Sends scripts again that a shard refused, once it is registered or its lost keys are repaired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import LowkiqError, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.client import Client, InconsistentKeys, ShardCountDiffers, WrongType
from celery_lowkiq.store.scripts.script import ScriptCall

from .claims import is_frayed
from .registry import Registry

#: How often a shard may change its count between admitting a call and running it.
ADMISSIONS = 5


class ShardCall(NamedTuple):
    """A script for a shard of a queue."""

    queue: QueueSpec
    shard: ShardRef
    call: ScriptCall


class Admission:
    """Every method may raise StoreUnavailable; other errors are answers."""

    def __init__(self, client: Client, repairs: Repairs) -> None:
        self._client = client
        self._registry = Registry(client, repairs)
        self._repairs = repairs

    def replies(self, calls: Sequence[ShardCall]) -> list[Any]:
        """Replies of scripts that name the number of shards."""
        replies = self._client.calls([each.call for each in calls])
        for _ in range(ADMISSIONS):
            cleared = self._clear(calls, replies)
            if not cleared:
                break
            for place, refused in cleared.items():
                replies[place] = refused
            again = [place for place, refused in cleared.items() if refused is None]
            for place, reply in zip(again, self._client.calls([calls[n].call for n in again]), strict=True):
                replies[place] = reply
        return replies

    def claim_reply(self, claim: ShardCall, reply: Any) -> Any:
        """The reply of a claim, or, after a repair, of another attempt."""
        if is_frayed(reply):
            refused = _refusal(lambda: self._repairs.repair_minor(claim.queue, claim.shard))
            return reply if refused is None else _as_store_error(refused)
        for _ in range(ADMISSIONS):
            cleared = self._clear([claim], [reply]) if isinstance(reply, StoreError) else {}
            if not cleared:
                break
            if (refused := cleared[0]) is not None:
                return _as_store_error(refused)
            (reply,) = self._client.calls([claim.call])
        if isinstance(reply, StoreUnavailable):
            raise reply
        return reply

    def _clear(self, calls: Sequence[ShardCall], replies: Sequence[Any]) -> dict[int, LowkiqError | None]:
        """What was in the way of refused calls, by place: None where it is cleared, else why it is not."""
        found: dict[int, LowkiqError | None] = {}
        strangers = []
        for place, (each, reply) in enumerate(zip(calls, replies, strict=True)):
            if isinstance(reply, InconsistentKeys):
                found[place] = _refusal(partial(self._repairs.mend, each.queue, each.shard))
            elif isinstance(reply, ShardCountDiffers) or self._had_wrong_meta(each.shard, reply):
                strangers.append(place)
        for queue, places in groupby(strangers, key=lambda place: calls[place].queue):
            shards = {place: calls[place].shard for place in places}
            found |= self._admit(queue, shards)
        return found

    def _had_wrong_meta(self, shard: ShardRef, reply: Any) -> bool:
        return isinstance(reply, WrongType) and self._repairs.clear_meta(shard)

    def _admit(self, queue: QueueSpec, shards: dict[int, ShardRef]) -> dict[int, LowkiqError | None]:
        refused: dict[ShardRef, ShardDamaged] = {}
        of_queue = _refusal(lambda: refused.update(self._registry.admit(queue, list(shards.values()))))
        return {place: of_queue or refused.get(shard) for place, shard in shards.items()}


def _refusal(act: Callable[[], object]) -> LowkiqError | None:
    """The error that it ends with, unless that is a Redis that is away: that is raised."""
    try:
        act()
    except StoreUnavailable:
        raise
    except LowkiqError as error:
        return error
    return None


def _as_store_error(error: LowkiqError) -> StoreError:
    return error if isinstance(error, StoreError) else StoreError(str(error))
