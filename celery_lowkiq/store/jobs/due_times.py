"""Reads the due times of shards; one script looks into hundreds of shards that were empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.errors import ShardDamaged, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import number_text, parse_seconds, parse_time
from celery_lowkiq.store.scripts.script import load

from .claims import open_claims

#: Shards that one script looks into: about 0.4 ms of work for Redis.
SHARDS = 500


def due_times(
    client: Client, shards: Sequence[ShardRef], in_hand: Sequence[OpenClaims], were_empty: Sequence[bool]
) -> list[Due | ShardDamaged | None]:
    """Return the due time of each shard. See ``RedisStore.next_due``."""
    claims: Sequence[OpenClaims | None] = in_hand or [None] * len(shards)
    dues: dict[int, Due | ShardDamaged | None] = {}
    dues.update(_still_empty(client, shards, [n for n, was_empty in enumerate(were_empty) if was_empty]))
    left = [n for n in range(len(shards)) if n not in dues]
    calls = [load("next_due").call(shard_keys(shards[n]), open=open_claims(claims[n])) for n in left]
    replies = client.calls(calls) if calls else []
    client.check_away(replies)
    for n, reply in zip(left, replies, strict=True):
        dues[n] = _due(reply)
    return [dues[n] for n in range(len(shards))]


def count_due(client: Client, shards: Sequence[ShardRef]) -> int:
    """Return the number of due jobs of the shards. See ``RedisStore.count_due``."""
    keys = [shard_keys(shard)[index] for shard in shards for index in ("due", "due_prioritized")]
    dues = due_times(client, shards, (), ())
    now = max((due.now for due in dues if isinstance(due, Due)), default=0.0)
    counts = client.command_answers([("ZCOUNT", key, "-inf", number_text(now)) for key in keys])
    return sum(count for count in counts if isinstance(count, int))


def _due(reply: Any) -> Due | ShardDamaged | None:
    if isinstance(reply, ShardDamaged):
        return reply
    if isinstance(reply, StoreUnavailable):
        return None
    raise_refused([reply])
    return Due(parse_time(reply[1]), parse_seconds(reply[0]))


def _still_empty(client: Client, shards: Sequence[ShardRef], numbers: Sequence[int]) -> dict[int, Due | None]:
    """Return by its number each of these shards that still has no waiting job, with a due time of None, and
    each whose master is away.
    """
    parts = client.slices(numbers, SHARDS)
    calls = [load("find_jobs").call_many([shard_keys(shards[n])["jobs"] for n in part]) for part in parts]
    dues: dict[int, Due | None] = {}
    for part, reply in zip(parts, client.answers(calls), strict=True):
        if isinstance(reply, StoreUnavailable):
            dues.update(dict.fromkeys(part))
            continue
        now, *positions = reply
        dues.update(dict.fromkeys(part, Due(None, parse_seconds(now))))
        for position in positions:
            del dues[part[position - 1]]
    return dues
