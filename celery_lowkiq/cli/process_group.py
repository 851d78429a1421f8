"""Child processes that are started, restarted and ended together."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Seconds that a process gets to end after TERM.
PATIENCE = 10.0
#: Longest wait for a lock in s: a signal that another thread has received is handled after it.
SLICE = 0.1


@dataclass(frozen=True)
class Program:
    """A command line to run."""

    name: str
    words: Sequence[str]


@dataclass(eq=False)
class Child:
    """A started process."""

    name: str
    process: subprocess.Popen[bytes]
    ended: threading.Event = field(default_factory=threading.Event)


class ProcessGroup:
    """Child processes, each in its own session: Ctrl-C reaches only this process, which ends them by pid."""

    def __init__(
        self, commands: Sequence[Program], environ: Mapping[str, str], ended: Callable[[Child], None]
    ) -> None:
        """``ended`` is called in a thread for each process that has ended, for any reason."""
        self._commands = commands
        self._environ = {**os.environ, **environ}
        self._ended = ended
        self._children: list[Child] = []

    def start(self) -> None:
        """Start each program."""
        for command in self._commands:
            process = subprocess.Popen(  # noqa: S603 - a list of our own words
                list(command.words), env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
            child = Child(command.name, process)
            self._children.append(child)
            threading.Thread(
                target=self._wait, args=(child,), name=f"wait for {child.name}", daemon=True
            ).start()

    def stop(self) -> bool:
        """End all processes. Return whether each ended in time, without being killed."""
        for child in self._children:
            child.process.terminate()
        deadline = time.monotonic() + PATIENCE
        late = [child for child in self._children if not _ended_by(child, deadline)]
        self.kill()
        for child in self._children:
            child.ended.wait()
        self._children.clear()
        return not late

    def kill(self) -> None:
        """Kill all running processes. A signal handler may call it while another call waits."""
        for child in list(self._children):
            child.process.kill()

    def __contains__(self, child: Child) -> bool:
        return child in self._children

    def _wait(self, child: Child) -> None:
        child.process.wait()
        child.ended.set()
        self._ended(child)


def _ended_by(child: Child, deadline: float) -> bool:
    while not child.ended.wait(SLICE):
        if time.monotonic() >= deadline:
            return False
    return True
