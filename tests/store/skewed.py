"""A store on one server whose slots have clocks of their own, as those of a cluster's masters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import redis

from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.cluster_client import ClusterClient
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import reports_key
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import ScriptCall, library

T = TypeVar("T")


class SkewedClient(Client):
    """Runs what is sent with the clock of the master that a cluster's client would send it to."""

    def __init__(self, client: redis.Redis, ahead: Mapping[str, float]) -> None:
        """``ahead``: by a key of the master, the seconds by which its clock is ahead; 0 for others."""
        super().__init__(client)
        self._keyless_slot = slot_of(reports_key())
        self._ahead = {slot_of(key): round(seconds * 1_000_000) for key, seconds in ahead.items()}
        for micros in {0, *self._ahead.values()}:
            client.set(_clock_key(micros), micros)

    def kind(self) -> Kind:
        return Kind.CLUSTER

    def slices(self, values: Sequence[T], size: int) -> list[Sequence[T]]:
        return [values[n : n + 1] for n in range(len(values))]

    def check_reachable(self, replies: Iterable[Any]) -> None:
        pass

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return super().calls(
            [
                call._replace(
                    script=replace(call.script, body=self._clock(slot_of(call.keys[0])) + call.script.body)
                )
                for call in calls
            ]
        )

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        slots = ClusterClient._slots(self, commands)
        return super()._send(
            [
                ("EVAL", f"{self._clock(slot)}return redis.call('TIME')", 0)
                if command == ("TIME",)
                else command
                for command, slot in zip(commands, slots, strict=True)
            ]
        )

    def _clock(self, slot: int) -> str:
        """What begins a script that runs with the clock of a slot's master."""
        return f"local clock_key = '{_clock_key(self._ahead.get(slot, 0))}'\n{library('time.test')}\n"


def _clock_key(micros: int) -> str:
    return f"clock ahead by {micros}"


def skewed(client: redis.Redis, ahead: Mapping[str, float]) -> RedisStore:
    """Return a store with these clocks: see :class:`SkewedClient`."""
    return RedisStore(client, sending=partial(SkewedClient, ahead=ahead))
