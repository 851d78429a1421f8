"""Ports for the servers of tests.

A port that was only found free may be taken before the server listens: by another process of tests, or by a
connection, since Linux chooses the ports of connections, too. So these lie below those of connections, and
each process has a block of them to itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

#: Of the bus of a cluster, above the port of the server.
BUS = 10_000
#: First ports of the blocks. Buses, too, are below 32768, where the ports of connections begin.
STARTS = range(12_000, 22_000, 100)


def free_port() -> int:
    """A port whose bus is free, too. Others follow before it comes again."""
    ports, _ = _own_block()
    return next(port for port in ports if _is_free(port) and _is_free(port + BUS))


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False


@cache
def _own_block() -> tuple[Iterator[int], IO[str]]:
    """The ports of this process, in turn, and the file that keeps others from them until the process ends."""
    directory = Path(tempfile.gettempdir()) / f"lowkiq-test-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    for start in random.sample(STARTS, len(STARTS)):
        file = (directory / str(start)).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return itertools.cycle(range(start, start + STARTS.step)), file
    raise AssertionError(f"all {len(STARTS)} blocks of ports are in use: see {directory}")
