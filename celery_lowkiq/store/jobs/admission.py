"""Registers or repairs shards that refuse scripts, and sends the scripts again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import LowkiqError, StoreError
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.redis_errors import InconsistentKeys, ShardCountDiffers, WrongType
from celery_lowkiq.store.scripts.script import ScriptCall

from .claims import errors_differ
from .registry import ContinueMigration, Registry

#: Maximum number of attempts, since a shard may change its count again before the script is sent.
ADMISSIONS = 5
#: Refusals after which a script may be sent again.
CLEARABLE = (InconsistentKeys, ShardCountDiffers, WrongType)


class ShardCall(NamedTuple):
    """A script for a shard of a queue."""

    queue: QueueSpec
    shard: ShardRef
    call: ScriptCall


class Admission:
    """Replies of scripts. Methods return errors, also the StoreUnavailable of a repair or registration.

    They raise StoreUnavailable when the outcome of all scripts is unknown.
    """

    def __init__(self, client: Client, repairs: Repairs, continue_migration: ContinueMigration) -> None:
        self._client = client
        self._continue_migration = continue_migration
        self._registry = Registry(client, repairs)
        self._repairs = repairs

    def replies(self, calls: Sequence[ShardCall]) -> list[Any]:
        """Run scripts that check the number of shards, and return their replies."""
        replies = self._client.calls([each.call for each in calls])
        for _ in range(ADMISSIONS):
            if not any(isinstance(reply, CLEARABLE) for reply in replies):
                break
            cleared = self._clear(calls, replies)
            if not cleared:
                break
            for place, refused in cleared.items():
                replies[place] = refused
            again = [place for place, refused in cleared.items() if refused is None]
            repeated = self._client.calls([calls[n].call for n in again])
            for place, reply in zip(again, repeated, strict=True):
                replies[place] = reply
        return replies

    def claim_reply(self, claim: ShardCall, reply: Any) -> Any:
        """Return the reply of a claim, or of another attempt after a repair."""
        if errors_differ(reply):
            refused = _refusal(lambda: self._repairs.repair_minor(claim.queue, claim.shard))
            return reply if refused is None else _as_store_error(refused)
        for _ in range(ADMISSIONS):
            cleared = self._clear([claim], [reply]) if isinstance(reply, StoreError) else {}
            if not cleared:
                break
            if (refused := cleared[0]) is not None:
                return _as_store_error(refused)
            (reply,) = self._client.calls([claim.call])
        return reply

    def _clear(self, calls: Sequence[ShardCall], replies: Sequence[Any]) -> dict[int, LowkiqError | None]:
        """Handle refused calls. Returns by their index None when a call may be sent again, or an error."""
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
        refused: dict[ShardRef, StoreError] = {}
        opened = partial(self._registry.open_shards, queue, list(shards.values()), self._continue_migration)
        of_queue = _refusal(lambda: refused.update(opened()))
        return {place: of_queue or refused.get(shard) for place, shard in shards.items()}


def _refusal(act: Callable[[], object]) -> LowkiqError | None:
    """Return the error that ``act`` raises."""
    try:
        act()
    except LowkiqError as error:
        return error
    return None


def _as_store_error(error: LowkiqError) -> StoreError:
    return error if isinstance(error, StoreError) else StoreError(str(error))
