"""Push durability: waits until replicas or the disk have a push."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from celery_lowkiq.rules.clock import Clock, SystemClock
from celery_lowkiq.rules.errors import ConfigurationError, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import shard_keys
from celery_lowkiq.store.scripts.steps import Steps

#: Timeout of one WAIT in ms, and of all its repetitions in s.
WAIT_MS = 500
CONFIRM_SECONDS = 5.0


class Level(str, enum.Enum):
    """``lowkiq_push_durability``."""

    #: The server has it in memory.
    FAST = "fast"
    #: A number of replicas have it in memory.
    REPLICATED = "replicated"
    #: The server has it on its disk.
    FSYNCED = "fsynced"


@dataclass(frozen=True)
class Durability:
    """A level, and for REPLICATED the number of replicas."""

    level: Level = Level.FAST
    replicas: int = 1

    def confirm_steps(self, client: Client, shard: ShardRef, clock: Clock | None = None) -> Steps[None]:
        """Wait until earlier writes have reached the level.

        Raises StoreUnavailable when they have not within CONFIRM_SECONDS: the push is stored, but not
        confirmed, and may be repeated. Raises ConfigurationError when the server does not support the level.
        """
        if self.level is Level.FAST:
            return
        now = (clock or SystemClock()).monotonic
        deadline = now() + CONFIRM_SECONDS
        while not (yield from self._confirmed(client, shard)):
            if now() >= deadline:
                raise StoreUnavailable(
                    f"the push was stored, but not confirmed as {self.level.value} within "
                    f"{CONFIRM_SECONDS:.0f} s; to call again is safe"
                )

    def _confirmed(self, client: Client, shard: ShardRef) -> Steps[bool]:
        # WAIT counts writes of its own connection: this one changes nothing, and comes after the push.
        write = ("HINCRBY", shard_keys(shard)["meta"], "last_arrival", 0)
        if self.level is Level.REPLICATED:
            _, replicas = yield from client.command_steps([write, ("WAIT", self.replicas, WAIT_MS)])
            return bool(replicas >= self.replicas)
        try:
            _, (on_disk, _) = yield from client.command_steps([write, ("WAITAOF", 1, 0, WAIT_MS)])
        except StoreUnavailable:
            raise
        except StoreError as error:
            raise ConfigurationError(
                "lowkiq_push_durability='fsynced' needs WAITAOF (Redis 7.2 or Valkey) and appendonly yes: "
                f"{error}"
            ) from error
        return bool(on_disk >= 1)
