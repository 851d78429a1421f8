"""The client of simulated migrations, whose scripts have virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import redis

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.script import Script, ScriptCall
from celery_lowkiq.store.scripts.steps import Steps

CLOCK = """
local virtual_us = tonumber(table.remove(ARGV))
local server = redis
local redis = setmetatable({
  call = function(command, ...)
    if command ~= 'TIME' then
      return server.call(command, ...)
    end
    return {math.floor(virtual_us / 1000000), virtual_us % 1000000}
  end,
}, {__index = server})
"""


class Patient:
    """A clock: a mover waits for a replica as long as it takes, unless it dies."""

    monotonic = staticmethod(lambda: 0.0)


@cache
def clocked(script: Script) -> Script:
    return replace(script, body=CLOCK + script.body)


class VirtualClient(Client):
    """Its scripts get their time with their arguments."""

    def __init__(self, client: redis.Redis, of: Any) -> None:
        super().__init__(client)
        self.of = of

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        return self.of.streams(shards)

    def master_of(self, shard: ShardRef) -> str | None:
        return f"master {self.of.homes[shard.index]}"

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Of what is not done in steps: nothing comes in between."""
        return [self.of.send(command) for command in commands]

    def call_steps(self, calls: Sequence[ScriptCall]) -> Steps[list[Any]]:
        return super().call_steps([call._replace(script=clocked(call.script)) for call in calls])
