"""The Redis of a run: our own, that may be killed, rolled back and have its clock set, or the user's."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from celery_lowkiq.embedded import EmbeddedServer, find_server
from celery_lowkiq.rules.errors import ConfigurationError
from tests.chaos.proxy import Address

COMPILER = "cc"
#: Time as the server sees it: true time plus the microseconds that the file holds.
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
static volatile long long *beside;
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    if (!beside) {
        int file = open(getenv("LOWKIQ_CHAOS_CLOCK"), O_RDONLY);
        beside = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    }
    long failed = syscall(SYS_gettimeofday, now, zone);
    long long us = now->tv_sec * 1000000LL + now->tv_usec + *beside;
    now->tv_sec = us / 1000000;
    now->tv_usec = us % 1000000;
    return failed;
}
"""


class Clock:
    """Sets a server's clock beside the true time, through a preloaded library."""

    def __init__(self, directory: Path) -> None:
        """Raises subprocess.CalledProcessError when the compiler fails."""
        self._file = directory / "clock"
        self.set(0.0)
        source, library = directory / "clock.c", directory / "clock.so"
        source.write_text(SHIM)
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.executable = directory / "redis-with-clock"
        self.executable.write_text(
            f'#!/bin/sh\nLD_PRELOAD={library} LOWKIQ_CHAOS_CLOCK={self._file} exec {find_server()} "$@"\n'
        )
        self.executable.chmod(0o700)

    def set(self, seconds: float) -> None:
        """Set the server's clock ``seconds`` ahead of the true time."""
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(struct.pack("q", int(seconds * 1e6)))


def can_set_clocks() -> bool:
    """Whether there is what a Clock needs."""
    return sys.platform == "linux" and shutil.which(COMPILER) is not None


class Victim:
    """Our own server, with an append-only file that keeps what it acknowledged when it is killed."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock
        self.alive = False
        self._server = self._new_server()

    def _new_server(self) -> EmbeddedServer:
        # "everysec" may hold back acknowledged writes in the process for 2 s, while the disk is busy.
        return self._server_with(appendfsync="no")

    def _server_with(self, port: int | None = None, **config: str) -> EmbeddedServer:
        executable = self.clock.executable if self.clock is not None else None
        config = {"auto-aof-rewrite-percentage": "0", **config}
        return EmbeddedServer(executable=executable, port=port, appendonly=True, config=config)

    def start(self) -> Address:
        """Start it; where it listens."""
        self._server.start()
        self.alive = True
        return self._server.socket_path

    def kill(self) -> None:
        """SIGKILL."""
        self._server.kill()
        self.alive = False

    def restart(self) -> None:
        """Start it again with the data that it has written."""
        self._server.restart()
        self.alive = True

    def written(self) -> int:
        """Bytes of the append-only file; what was acknowledged before is within them."""
        return self._log().stat().st_size

    def forget(self, written: int) -> None:
        """Cut off what was written since; call it while the server is dead."""
        if self.written() > written:
            os.truncate(self._log(), written)

    def stop(self) -> None:
        """End it, and remove its data."""
        self._server.stop()

    def _log(self) -> Path:
        found = sorted(Path(self._server.socket_path).parent.rglob("*.aof"))
        return found[-1]


def address_of(url: str) -> Address:
    """Where a Redis listens. Raises ConfigurationError where no TCP proxy can stand before it."""
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        return parts.path
    if parts.scheme != "redis":
        raise ConfigurationError(
            "--redis: a redis:// or redis+socket:// URL is needed, to put a proxy before it"
        )
    return parts.hostname or "127.0.0.1", parts.port or 6379


def through_proxy(url: str | None, port: int) -> str:
    """The URL of a Redis (None: our own) with the proxy's address in place of its own."""
    if url is None:
        return f"redis://127.0.0.1:{port}/0"
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    if parts.scheme == "redis+socket":
        database = dict(pair.partition("=")[::2] for pair in parts.query.split("&")).get("virtual_host", "0")
        return f"redis://{user}{at}127.0.0.1:{port}/{database.strip('/')}"
    return parts._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()
