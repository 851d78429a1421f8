"""Reads the leases of many shards with each script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_lowkiq.rules.models import LeaseState, ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.records import parse_id, parse_whole
from celery_lowkiq.store.scripts.script import load, slices

#: Leases that one script reads: about 0.6 ms of work for Redis.
LEASES = 200


def observe(client: Client, shards: Sequence[ShardRef]) -> list[LeaseState]:
    """Return the leases of the shards. See ``RedisStore.observe``."""
    calls = [
        load("read_leases").call_many([shard_keys(shard)["lease"] for shard in part])
        for part in slices(shards, LEASES)
    ]
    return [state for reply in client.all(calls) for state in _states(*reply)]


def _states(server: bytes, holders: Sequence[bytes], *leases: bytes | int) -> Iterator[LeaseState]:
    run_id = parse_id(server)
    held_by = [
        (parse_id(owner), parse_id(given_on), leaving == b"1")
        for owner, given_on, leaving in zip(holders[::3], holders[1::3], holders[2::3], strict=True)
    ]
    for place, epoch, counter in zip(leases[::3], leases[1::3], leases[2::3], strict=True):
        owner, given_on, leaving = held_by[int(place)]
        yield LeaseState(
            owner, parse_whole(bytes(epoch)), parse_whole(bytes(counter)), run_id, given_on, leaving
        )
