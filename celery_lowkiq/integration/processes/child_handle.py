"""A lane's child process, as its lane sees it: start, messages, kill, death."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing import process as processes
from multiprocessing import resource_tracker
from typing import Any

from celery_lowkiq.integration.processes import preload, protocol
from celery_lowkiq.integration.processes.app_reference import PRELOADED_APP
from celery_lowkiq.integration.processes.child import ChildOptions, main
from celery_lowkiq.integration.processes.protocol import Channel
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.worker import forks

#: Seconds that a child may take to start: it imports the app.
START_TIMEOUT = 60.0
#: Seconds between looks at a running batch: at its process, its lease, and its time.
LOOK = 0.1
#: Seconds that a child has to end, until SIGKILL.
END_TIMEOUT = 5.0


class ProcessDied(LowkiqError):
    """The process ended before it answered; the text says how."""


class NotStarted(LowkiqError):
    """A child process could not be started."""


class ChildHandle:
    """A child process with its pipes. It belongs to the thread of its lane, but :meth:`signal`."""

    def __init__(self, name: str, options: ChildOptions) -> None:
        """Start it, and wait until it can run batches. Raises NotStarted."""
        #: Number of its last run.
        self.runs: int = 0
        self.options: ChildOptions = options
        #: The last entry of Celery's revoked ids that it knows.
        self.revoked: Any = None
        self._name = name
        self._has_ended = False
        self._lock = threading.Lock()
        try:
            self._start(options)
        except (OSError, EOFError, RuntimeError) as error:
            raise NotStarted(f"{name} has no child process: {error!r}") from error
        #: When it answered last (monotonic s).
        self._answered_at = time.monotonic()
        self._wait_until_ready()

    def _start(self, options: ChildOptions) -> None:
        """Raises OSError, EOFError, RuntimeError."""
        os.environ[PRELOADED_APP] = ",".join((options.app, *options.modules))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([preload.__name__])
        end, childs_end = socket.socketpair()
        self._work = Channel(end, LOOK)
        controls_end, self._control = context.Pipe(duplex=False)
        # Nothing is sent on it: it closes with the worker.
        lifelines_end, self._lifeline = context.Pipe(duplex=False)
        # Its end of the pipes stays with the worker: a child ends when the worker does.
        forks.close_in_forks(self._work, self._control, self._lifeline)
        arguments = childs_end, controls_end, lifelines_end, options
        self._process = context.Process(target=main, args=arguments, name=self._name)
        try:
            with forks.blocked():
                # Its start unblocks some.
                resource_tracker.ensure_running()
            with forks.blocked():
                self._process.start()
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for one in (childs_end, controls_end, lifelines_end):
                one.close()
        # Else an exiting worker would wait for it, and it for the end of the worker.
        vars(processes)["_children"].discard(self._process)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def _wait_until_ready(self) -> None:
        reason = f"it took longer than {START_TIMEOUT:.0f} s"
        try:
            while time.monotonic() < self._answered_at + START_TIMEOUT:
                if self.receive() is not None:
                    return
        except ProcessDied as error:
            reason = str(error)
        self.kill()
        raise NotStarted(f"{self._name} has no child process: {reason}")

    # -- messages

    def send(self, message: bytes) -> bool:
        """Send a message; False when the process has ended before."""
        # A busy one has not ended in so short a time, and a look costs a system call.
        if time.monotonic() > self._answered_at + LOOK and not (
            self._work.is_silent() and self._process.is_alive()
        ):
            return False
        try:
            self._work.send(message)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Any, ...] | None:
        """Return the next message; None if nothing arrives within LOOK. Raises ProcessDied.

        The outcome of another run than the last one is skipped: it must not settle this one's jobs.
        """
        was_alive = True
        with contextlib.suppress(EOFError, OSError):
            while (data := self._work.receive()) is None:
                if not was_alive:
                    # A fork of it keeps the socket open; its messages from before its end would be read.
                    raise EOFError
                was_alive = self._process.is_alive()
                if was_alive:
                    return None
            self._answered_at = time.monotonic()
            kind, *rest = message = protocol.read(data)
            return None if kind in (protocol.OUTCOME, protocol.FAILED) and rest[0] != self.runs else message
        self.kill()
        raise ProcessDied(_ended_by(self.exitcode))

    def tell(self, is_lost: bool, signum: int) -> None:
        """Tell the running batch whether another worker may own its shard, and by which signal it is to end.

        ``signum``: 0 if it goes on.
        """
        with contextlib.suppress(OSError):
            self._control.send_bytes(protocol.write((self.runs, is_lost, signum)))

    # -- the end

    def signal(self, signum: int, whole_group: bool = False) -> None:
        """Send a signal to the process, or also to all that it has started. Safe to use in any thread."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._has_ended:
                (os.killpg if whole_group else os.kill)(self.pid, signum)

    def ask_to_end(self) -> None:
        """Have the process end after what it does now."""
        if not self._has_ended:
            self.send(protocol.write((protocol.END,)))

    def end(self) -> None:
        """Wait until the process ends, by request or by itself; kill it if it is late."""
        if not self._has_ended:
            self._process.join(END_TIMEOUT)
            self._finish(kill=self._process.is_alive())

    def kill(self) -> None:
        """End the process and all that it has started, and wait for its end."""
        if not self._has_ended:
            self._finish(kill=True)

    def _finish(self, kill: bool) -> None:
        if kill:
            self.signal(signal.SIGKILL, whole_group=True)
            # It has no group of its own at its start.
            self._process.kill()
        self._process.join()
        with self._lock:
            self._has_ended = True
        self.exitcode: int | None = self._process.exitcode
        self._process.close()
        self._close_pipes()

    def _close_pipes(self) -> None:
        """Close this end of the pipes."""
        self._work.close()
        self._control.close()
        self._lifeline.close()


def _ended_by(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exitcode).name
    return f"exit status {exitcode}"
