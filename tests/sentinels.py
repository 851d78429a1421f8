"""A master with a replica, and three real sentinels that replace it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import redis

from celery_lowkiq.embedded import EmbeddedServer, find_server
from tests.ports import free_port
from tests.waiting import eventually

NAME = "mymaster"
PASSWORD = "of-sentinels"
#: A user of the sentinels that may ask for masters only, and its password.
USER, USER_PASSWORD = "asker", "of-asker"


class Sentinels:
    """``servers``: the first master, and its replica."""

    def __init__(self, servers: Sequence[EmbeddedServer], ports: Sequence[int]) -> None:
        self.servers = list(servers)
        self.ports = list(ports)

    @property
    def url(self) -> str:
        return ";".join(f"sentinel://127.0.0.1:{port}" for port in self.ports)

    def client(self, number: int) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.servers[number].socket_path)

    def role(self, number: int) -> str:
        with self.client(number) as client:
            return str(client.info("replication")["role"])


@contextlib.contextmanager
def running_sentinels(
    directory: Path,
    executable: str | os.PathLike[str] | None = None,
    tls: Mapping[str, str] | None = None,
) -> Iterator[Sentinels]:
    """Start them; a master that is silent for a second is replaced. ``tls``: options for its files.

    The sentinels have a password, and a user with few rights.
    """
    executable = executable or os.environ.get("LOWKIQ_TEST_SERVER") or find_server()
    with contextlib.ExitStack() as stack:
        servers: list[EmbeddedServer] = []
        for _ in range(2):
            port = free_port()
            config = {**(tls or {}), **({"port": "0", "tls-port": str(port)} if tls else {})}
            if servers:
                config["replicaof"] = f"127.0.0.1 {servers[0].port}"
            made = EmbeddedServer(executable=executable, port=port, config=config)
            servers.append(stack.enter_context(made))
        ports = [
            stack.enter_context(_sentinel(directory / f"sentinel-{n}", executable, servers[0].port or 0, tls))
            for n in range(3)
        ]
        found = Sentinels(servers, ports)
        eventually(lambda: _is_complete(directory), 60)
        yield found


@contextlib.contextmanager
def _sentinel(
    directory: Path, executable: str | os.PathLike[str], master: int, tls: Mapping[str, str] | None
) -> Iterator[int]:
    directory.mkdir(parents=True)
    port = free_port()
    listens = {"port": "0", "tls-port": str(port), **tls} if tls else {"port": str(port)}
    lines = [
        *(f"{name} {value}" for name, value in listens.items()),
        "bind 127.0.0.1",
        f"dir {directory}",
        f"requirepass {PASSWORD}",
        f"user {USER} on >{USER_PASSWORD} &* -@all +sentinel|masters +sentinel|slaves +@connection",
        f"sentinel monitor {NAME} 127.0.0.1 {master} 2",
        f"sentinel down-after-milliseconds {NAME} 1000",
        f"sentinel failover-timeout {NAME} 5000",
    ]
    config = directory / "sentinel.conf"
    config.write_text("\n".join(lines) + "\n")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([str(executable), str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def _is_complete(directory: Path) -> bool:
    """Whether each sentinel has written down the replica and the two others."""
    texts = [path.read_text() for path in directory.glob("sentinel-*/sentinel.conf")]
    return all(text.count("known-sentinel ") == 2 and "known-replica " in text for text in texts)
