"""The proxy of a chaos run: it forwards, and its line can be cut, blocked and down."""

from __future__ import annotations

import socket
import socketserver
import threading

import pytest

from tests.chaos.proxy import Proxy
from tests.waiting import eventually


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100):
            self.request.sendall(data.upper())


@pytest.fixture
def echo():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo):
    made = Proxy(echo.server_address)
    made.start()
    yield made
    made.stop()


def connect(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def says(connection, data):
    connection.sendall(data)
    return connection.recv(100)


def is_closed(connection):
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


def test_it_forwards_both_ways(proxy):
    with connect(proxy) as one, connect(proxy) as other:
        assert says(one, b"a") == b"A"
        assert says(other, b"b") == b"B"


def test_a_cut_closes_all_connections_and_new_ones_work(proxy):
    with connect(proxy) as one:
        says(one, b"a")
        proxy.cut()
        assert is_closed(one)
    with connect(proxy) as again:
        assert says(again, b"b") == b"B"


def test_what_falls_into_a_hole_comes_out_of_it_later(proxy):
    with connect(proxy) as one:
        says(one, b"a")
        proxy.hold()
        one.settimeout(0.1)
        with pytest.raises(TimeoutError):
            says(one, b"b")
        proxy.heal()
        one.settimeout(10)
        assert one.recv(100) == b"B"


def test_when_it_is_down_it_refuses_and_comes_back_at_the_same_port(proxy):
    with connect(proxy) as one:
        says(one, b"a")
        proxy.down()
        assert is_closed(one)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as again:
        assert says(again, b"b") == b"B"


def test_another_server_gets_what_comes_after_a_switch(proxy, tmp_path):
    with connect(proxy) as one, socket.create_server(("127.0.0.1", 0)) as other:
        says(one, b"a")
        proxy.switch(other.getsockname())
        assert is_closed(one)
        with connect(proxy) as again:
            again.sendall(b"b")
            accepted, _ = other.accept()
            with accepted:
                assert accepted.recv(100) == b"b"


def test_a_server_that_is_away_closes_the_connection(proxy, echo):
    echo.shutdown()
    echo.server_close()

    def refused():
        with connect(proxy) as one:
            return is_closed(one)

    assert eventually(refused)
