"""Connections of ``lowkiq web`` that do not finish their headers, or their bodies."""

from __future__ import annotations

import socket
import threading

import httpx2 as httpx
import pytest
import uvicorn

from celery_lowkiq.web import endpoints, make_app, server
from celery_lowkiq.web.server import MOST_OF_ADDRESS, HttpProtocol
from tests.waiting import eventually


@pytest.fixture
def address(app):
    """Of the dashboard as ``lowkiq web`` serves it."""
    config = uvicorn.Config(make_app(app), port=0, log_level="warning", http=HttpProtocol, ws="none")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: running.started or not thread.is_alive())
        yield running.servers[0].sockets[0].getsockname()
    finally:
        running.should_exit = True
        thread.join(30)


@pytest.fixture
def half_open(address):
    """Connections that have sent the beginning of a request."""
    opened = []

    def connect(begin=b"GET / HTTP/1.1\r\nHost: localhost\r\n", source="127.0.0.1"):
        made = socket.create_connection(address, 10, (source, 0))
        made.sendall(begin)
        opened.append(made)
        return made

    yield connect
    for one in opened:
        one.close()


def is_closed(connection):
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def asks(address):
    return httpx.get(f"http://localhost:{address[1]}/healthz", timeout=10).status_code


def test_s3_600_half_open_requests_shut_nobody_out(address, half_open):
    """S3: they all stayed open."""
    opened = [half_open() for _ in range(600)]
    assert asks(address) == 200
    eventually(lambda: sum(not is_closed(one) for one in opened) <= MOST_OF_ADDRESS)
    assert not is_closed(opened[-1]), "the oldest are closed"
    opened[-1].settimeout(10)
    opened[-1].sendall(b"\r\n")
    assert opened[-1].recv(20).startswith(b"HTTP/1.1 200")


def test_many_addresses_are_bounded_together(address, half_open, monkeypatch):
    monkeypatch.setattr(server, "MOST", 100)
    single = half_open(source="127.0.0.200")
    opened = [half_open(source=f"127.0.1.{1 + number % 5}") for number in range(200)]
    eventually(lambda: sum(not is_closed(one) for one in opened) <= 100)
    assert not is_closed(single), "the address with the most loses some"
    assert asks(address) == 200


@pytest.mark.parametrize("begin", [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_header_has_a_deadline(half_open, monkeypatch, begin):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    connection = half_open(begin)
    eventually(lambda: is_closed(connection))


def test_the_next_header_of_a_connection_has_one_too(half_open, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    connection = half_open(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal")
    eventually(lambda: is_closed(connection))


def test_a_slow_header_that_goes_on_is_closed(half_open, monkeypatch):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    connection = half_open()

    def goes_on():
        try:
            connection.sendall(b"X: y\r\n")
        except OSError:
            return True
        return is_closed(connection)

    eventually(goes_on)


def test_a_header_of_any_size_is_refused(half_open):
    connection = half_open()
    connection.settimeout(10)
    try:
        connection.sendall(b"X: " + b"y" * 200_000)
    except OSError:
        return
    answer = connection.recv(100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


def test_a_body_has_a_deadline(half_open, monkeypatch):
    monkeypatch.setattr(endpoints, "BODY_SECONDS", 0.2)
    head = b"POST /api/v1/changes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection = half_open(head + b"Content-Length: 100\r\n\r\n{")
    connection.settimeout(10)
    assert connection.recv(100).startswith(b"HTTP/1.1 408")
