"""Connections between the worker and the node process that no fork keeps open."""

from __future__ import annotations

import os
import weakref
from multiprocessing.connection import Connection


def close_in_forks(connection: Connection) -> None:
    """Close it in processes that this one forks: else it would not end with this process."""
    _connections.add(connection)


def _close_copies() -> None:
    for connection in list(_connections):
        connection.close()
    _connections.clear()


#: Connections to close in a forked process.
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_copies)
