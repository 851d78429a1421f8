"""Ports for the servers of tests."""

from __future__ import annotations

import socket
import sys

from tests.ports import BUS, STARTS, free_port
from tests.processes import run

#: Linux chooses the ports of connections from here on.
CONNECTIONS = 32_768


def test_a_port_does_not_come_again_soon_and_neither_does_its_bus():
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    assert max(ports) + BUS < CONNECTIONS


def test_a_port_or_bus_in_use_is_left_out():
    port, other = free_port(), free_port()
    with socket.socket() as server, socket.socket() as bus:
        server.bind(("127.0.0.1", port))
        bus.bind(("127.0.0.1", other + BUS))
        found = {free_port() for _ in range(STARTS.step)}
    assert not found & {port, other}


def test_two_processes_of_tests_get_other_ports():
    ours = {free_port() for _ in range(STARTS.step)}
    script = f"from tests.ports import free_port; print(*(free_port() for _ in range({STARTS.step})))"
    done = run([sys.executable, "-c", script], 60)
    theirs = set(map(int, done.stdout.split()))
    assert len(ours) > 1
    assert len(theirs) > 1
    assert not ours & theirs
