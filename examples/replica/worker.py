"""A real ``celery worker`` process: started, waited for, stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from .tasks import MIRROR_VARIABLE, app

ROOT = Path(__file__).parents[2]
LANES = 8
STOP_SECONDS = 20.0
PING_SECONDS = 0.5
LOG_LINES = 40


class WorkerDied(Exception):
    """The worker ended without a request."""


class Worker:
    """``celery worker -P POOL -c 8`` on the tasks of this example; a context manager.

    It writes to the mirror in ``mirror_file`` and logs to ``log``.
    """

    def __init__(self, mirror_file: Path, log: Path, pool: str) -> None:
        self._pool = pool
        self._name = f"replica-{mirror_file.stem}-{os.getpid()}@localhost"
        self._environ = {**os.environ, MIRROR_VARIABLE: str(mirror_file)}
        self._log = log

    def __enter__(self) -> Worker:
        command = [sys.executable, "-m", "celery", "-A", "examples.replica.tasks", "worker"]
        command += ["-P", self._pool, "-c", str(LANES), "-n", self._name, "-l", "INFO"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"the worker did not stop within {STOP_SECONDS:.0f} s and is killed", file=sys.stderr)
        finally:
            self._process.kill()
            self._process.wait()

    def is_ready(self) -> bool:
        """Whether it answers a ping within a moment."""
        return bool(app.control.ping(destination=[self._name], timeout=PING_SECONDS, limit=1))

    def check(self) -> None:
        """Raise ``WorkerDied`` unless it runs."""
        if (status := self._process.poll()) is not None:
            raise WorkerDied(f"the worker ended by itself with status {status}")

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
