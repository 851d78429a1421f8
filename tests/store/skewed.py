"""A store on one server whose slots have clocks of their own, as those of a cluster's masters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import redis

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import ClusterClient, slots_of
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.exchange import SingleServer
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import ScriptCall, library


class SkewedServer(ClusterClient):
    """One server in place of all masters of a cluster. TIME is that of the master of its slot."""

    def __init__(self, client: redis.Redis, ahead: Mapping[str, float]) -> None:
        self.redis = client
        self.waits_less = False
        self._server = SingleServer(client)
        self._ahead = {slot_of(key): round(seconds * 1_000_000) for key, seconds in ahead.items()}
        for micros in {0, *self._ahead.values()}:
            client.set(_clock_key(micros), micros)

    def close(self) -> None:
        self._server.close()

    def apart(self) -> redis.Redis:
        return self._server.apart()

    def master_of(self, shard: ShardRef) -> str:
        return self._server.address()

    def load(self, missing: Any, flags: bool) -> Any:
        return self._server.load(missing, flags)

    def send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return self._server.send(
            [
                ("EVAL", f"{self.clock(slot)}return redis.call('TIME')", 0)
                if command == ("TIME",)
                else command
                for command, slot in zip(commands, slots_of(commands), strict=True)
            ]
        )

    def clock(self, slot: int) -> str:
        """What begins a script that runs with the clock of a slot's master."""
        return f"local clock_key = '{_clock_key(self._ahead.get(slot, 0))}'\n{library('time.test')}\n"


class SkewedClient(Client):
    """Runs what is sent with the clock of the master that a cluster's client would send it to."""

    def __init__(self, server: SkewedServer) -> None:
        super().__init__(server)
        self._clock = server.clock

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return super().calls(
            [
                call._replace(
                    script=replace(call.script, body=self._clock(slot_of(call.keys[0])) + call.script.body)
                )
                for call in calls
            ]
        )


def _clock_key(micros: int) -> str:
    return f"clock ahead by {micros}"


def skewed(client: redis.Redis, ahead: Mapping[str, float]) -> RedisStore:
    """Return a store with these clocks, by a key of the master the s by which it is ahead; 0 for others."""
    return RedisStore(client, sending=lambda _: SkewedClient(SkewedServer(client, ahead)))
