"""A Redis with a replica, for failovers: the master dies, and the replica takes its place."""

from __future__ import annotations

from typing import Any

import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import ConfigurationError
from tests.chaos.proxy import Address
from tests.chaos.queue import wait_for
from tests.chaos.victim import Clock, Victim

#: Seconds that the first replica gets to follow.
START = 15.0


class Pair(Victim):
    """A master and its replica, which both write each command to their disks."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._replica: EmbeddedServer | None = None

    def start(self) -> Address:
        """Start both; where the master listens."""
        address = super().start()
        self.add_replica()
        if wait_for(self.is_in_sync, START) is None:
            raise ConfigurationError(f"the replica did not follow within {START:.0f} s")
        return address

    def is_in_sync(self) -> bool:
        """Whether the replica has all that the master has told it, and has it on its disk."""
        found = self._of_replica("info")
        return (
            found["master_link_status"] == "up"
            and not found["aof_rewrite_in_progress"]
            and not found["aof_rewrite_scheduled"]
        )

    def detach(self) -> None:
        """Let the replica follow no more: it lags from now on."""
        self._of_replica("replicaof", "NO", "ONE")

    def fail(self) -> None:
        """SIGKILL to the master."""
        self.kill()

    def promote(self) -> Address:
        """Make the replica the master, which is killed at the latest now; where it listens."""
        assert self._replica is not None
        self.detach()
        former, self._server = self._server, self._replica
        self._replica = None
        former.kill()
        former.stop()
        self.alive = True
        return self._server.socket_path

    def add_replica(self) -> None:
        """Start a replica of the master."""
        self._replica = self._new_server()
        self._replica.start()
        self._of_replica("replicaof", "127.0.0.1", str(self._server.port))

    def stop(self) -> None:
        """End both, and remove their data."""
        if self._replica is not None:
            self._replica.stop()
        super().stop()

    def _of_replica(self, command: str, *words: str) -> Any:
        assert self._replica is not None
        with redis.Redis(unix_socket_path=self._replica.socket_path) as client:
            return getattr(client, command)(*words)

    def _new_server(self) -> EmbeddedServer:
        return self._server_with(port=0, appendfsync="always", **{"repl-diskless-sync-delay": "0"})
