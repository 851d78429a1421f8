"""Clusters of real servers on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import redis

from celery_lowkiq.embedded import EmbeddedServer, find_server

from .waiting import eventually

SLOTS = 16384
#: Of the bus of a cluster, above the port of the server.
BUS = 10_000


class Cluster:
    """Masters that share all slots evenly."""

    def __init__(self, servers: Sequence[EmbeddedServer]) -> None:
        self.servers = list(servers)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", server.port or 0) for server in self.servers]

    def node(self, number: int) -> redis.Redis:
        """A client of one node only."""
        return redis.Redis(unix_socket_path=self.servers[number].socket_path)

    def clients(self) -> list[redis.Redis]:
        """A client of each node."""
        return [self.node(number) for number in range(len(self.servers))]

    def owner(self, slot: int) -> int:
        """The number of the master that has a slot, as the masters say themselves."""
        for number in range(len(self.servers)):
            with self.node(number) as node:
                words = node.execute_command("CLUSTER NODES").items()
            for _, about in words:
                if "myself" in about["flags"] and any(_holds(part, slot) for part in about["slots"]):
                    return number
        raise AssertionError(f"nobody has slot {slot}")

    def id(self, number: int) -> str:
        with self.node(number) as node:
            return str(node.execute_command("CLUSTER MYID").decode())

    def begin_move(self, slot: int, target: int) -> int:
        """Have a slot move to another master, half-way. Returns the number of its master."""
        source = self.owner(slot)
        with self.node(target) as node:
            node.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id(source))
        with self.node(source) as node:
            node.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id(target))
        return source

    def move_keys(self, slot: int, source: int, target: int, most: int = 10_000) -> None:
        with self.node(source) as node:
            keys = node.execute_command("CLUSTER GETKEYSINSLOT", slot, most)
            if keys:
                port = self.servers[target].port
                node.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, target: int) -> None:
        name = self.id(target)
        for number in (target, *(n for n in range(len(self.servers)) if n != target)):
            with self.node(number) as node:
                node.execute_command("CLUSTER SETSLOT", slot, "NODE", name)

    def move(self, slot: int, target: int) -> None:
        """Move a slot with its keys."""
        source = self.owner(slot)
        if source != target:
            self.begin_move(slot, target)
            self.move_keys(slot, source, target)
            self.end_move(slot, target)

    def flush(self) -> None:
        for number in range(len(self.servers)):
            with self.node(number) as node:
                node.flushall()


def _holds(part: Sequence[str], slot: int) -> bool:
    return int(part[0]) <= slot <= int(part[-1]) if part[0].isdigit() else False


@contextlib.contextmanager
def running_cluster(
    masters: int = 3, executable: str | os.PathLike[str] | None = None, tls: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a cluster; a dead master refuses its own slots only. ``tls``: options for its files."""
    config = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": "2000",
        "cluster-require-full-coverage": "no",
        **({**tls, "tls-cluster": "yes"} if tls else {}),
    }
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(masters):
            port = free_port()
            of_port = {"port": "0", "tls-port": str(port)} if tls else {}
            server = EmbeddedServer(executable=executable or _server(), port=port, config=config | of_port)
            servers.append(stack.enter_context(server))
        cluster = Cluster(servers)
        for number in range(masters):
            first, last = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
            with cluster.node(number) as node:
                node.execute_command("CLUSTER ADDSLOTS", *range(first, last + 1))
                node.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        with cluster.node(0) as node:
            for server in servers[1:]:
                node.execute_command("CLUSTER MEET", "127.0.0.1", server.port)
        eventually(lambda: all(_is_complete(cluster, number) for number in range(masters)))
        yield cluster


def _is_complete(cluster: Cluster, number: int) -> bool:
    with cluster.node(number) as node:
        info = node.execute_command("CLUSTER INFO")
    masters = len(cluster.servers)
    return info["cluster_state"] == "ok" and (info["cluster_size"], info["cluster_slots_assigned"]) == (
        str(masters),
        str(SLOTS),
    )


def _server() -> str | Path:
    return os.environ.get("LOWKIQ_TEST_SERVER") or find_server()


def free_port() -> int:
    """A port whose bus is free, too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with contextlib.suppress(OSError, OverflowError), socket.socket() as bus:
            bus.bind(("127.0.0.1", port + BUS))
            return port
