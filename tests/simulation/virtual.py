"""The client of simulated migrations, whose scripts have virtual time, and whose senders take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import redis

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.exchange import SingleServer
from celery_lowkiq.store.script import Script, ScriptCall

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


class Closed(BaseException):
    """The process has died."""


class InTurns:
    """Code in a thread of its own, which goes on only while its caller waits for it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._goes_on, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._sent: Any = None
        self._found: Any = None
        self._error: BaseException | None = None
        self._is_closed = False

    def send(self, value: Any) -> Any:
        """Go on with what was waited for, up to the next wait. Returns what that one waits for.

        Raises StopIteration at the end, and what the code raises.
        """
        self._sent = value
        self._turn()
        if self._error is not None:
            raise self._error
        return self._found

    def wait(self, wanted: Any) -> Any:
        """Of the code: let the caller go on until it sends what is ``wanted``."""
        self._found = wanted
        self._waits.release()
        self._goes_on.acquire()
        if self._is_closed:
            raise Closed
        return self._sent

    def close(self) -> None:
        """End the code where it waits."""
        self._is_closed = True
        if self._thread.is_alive():
            self._turn()
            self._thread.join()

    def _turn(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._goes_on.release()
        self._waits.acquire()

    def _run(self) -> None:
        try:
            self._function()
            self._error = StopIteration()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._error = error
        self._waits.release()


class VirtualServer(SingleServer):
    """Stands for several masters, and sends in turns."""

    def __init__(self, client: redis.Redis, of: Any) -> None:
        super().__init__(client)
        self.of = of
        #: Who sends now; None: not in turns.
        self.sender: InTurns | None = None

    def master_of(self, shard: ShardRef) -> str:
        return f"master {self.of.homes[shard.index]}"

    def send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Each command is sent when it is the turn of its sender."""
        if self.sender is None:
            return [self.of.send(command) for command in commands]
        replies: list[Any] = self.sender.wait(commands)
        return replies


class VirtualClient(Client):
    """Its scripts get their time with their arguments."""

    def __init__(self, client: redis.Redis, of: Any) -> None:
        self.of = of
        self.server = VirtualServer(client, of)
        super().__init__(self.server)

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        return self.of.streams(shards)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing comes in between the commands of this block."""
        sender, self.server.sender = self.server.sender, None
        try:
            yield
        finally:
            self.server.sender = sender

    def calls(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return super().calls([call._replace(script=clocked(call.script)) for call in calls])
