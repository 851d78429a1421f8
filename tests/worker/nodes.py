"""pytest-celery's nodes with a process of this machine in place of a Docker container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery import Celery
from pytest_celery import CeleryTestContainer, CeleryTestWorker

from tests.processes import ROOT, Process


class ProcessContainer(CeleryTestContainer):
    """What a node asks of its container, answered by a child process that logs to a file."""

    def __init__(self, command: list[str], env: dict[str, str], log: Path) -> None:
        self._command = command
        self._env = env
        self._log = log
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self.process = Process(
                self._command, env=self._env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def id(self) -> str:
        return str(self.process.pid)

    @property
    def name(self) -> str:
        return f"pid {self.process.pid}"

    @property
    def status(self) -> str:
        return "running" if self.process.poll() is None else "exited"

    @property
    def ready_prompt(self) -> str:
        return "ready."

    def ready(self) -> bool:
        return self.ready_prompt in self.logs()

    def logs(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self, signal: str | int = "SIGKILL") -> None:
        self.process.send_signal(_number(signal))

    def restart(self, timeout: float = 30) -> None:
        self.teardown()
        self._start()

    def reload(self) -> None:
        """A process is never stale."""

    def teardown(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def exit_status(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)


def _number(name: str | int) -> int:
    return name if isinstance(name, int) else signal.Signals[name]


class Worker(CeleryTestWorker):
    """A worker node: ``celery -A tests.worker.proj worker`` in a process of its own."""

    container: ProcessContainer

    def exit_status(self, timeout: float = 30) -> int:
        return self.container.exit_status(timeout)


def worker(
    app: Celery,
    log: Path,
    *options: str,
    module: str = "tests.worker.proj",
    pool: str = "threads",
    lanes: int = 4,
    **env: Any,
) -> Worker:
    """Start a worker; fast to boot, and quick to take over from a dead one."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        module,
        "worker",
        "-P",
        pool,
        "-c",
        str(lanes),
    ]
    command += ["--without-mingle", "--without-gossip", "-l", "INFO", *options]
    variables = {**os.environ, **{name: str(value) for name, value in env.items()}}
    return Worker(ProcessContainer(command, variables, log), app)
