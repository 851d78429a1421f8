"""The acquire command of a shard, and its reply."""

from __future__ import annotations

from typing import Any

from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.models import Lease, ShardRef
from celery_lowkiq.rules.ownership import LeaseWatch
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import id_bytes
from celery_lowkiq.store.scripts.script import ScriptCall, load


def acquire_call(wish: LeaseWatch, owner: str) -> ScriptCall:
    """Return the script call that takes a shard."""
    queue, seen = wish.queue, wish.seen
    return load("acquire").call(
        shard_keys(wish.shard),
        owner=owner,
        seen_owner=id_bytes(seen.owner),
        seen_epoch=seen.epoch,
        seen_counter=seen.counter,
        seen_server=seen.server,
        known_epoch=wish.known_epoch,
        shards=queue.shards,
        merge=queue.merge.value,
        policy=queue.policy,
        max_crashes=queue.max_crashes,
        poison_error=queue.poison_error,
    )


def acquired(shard: ShardRef, owner: str, reply: Any) -> Lease | LowkiqError:
    """Return the lease or the error of the reply."""
    if isinstance(reply, LowkiqError):
        return reply
    epoch, server = reply
    return Lease(shard, owner, int(epoch), server.decode())
