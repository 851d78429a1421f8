"""Child processes that are started, restarted and ended together."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: Seconds after which the caller hears that a process has not ended yet.
LATE = 1.0
#: Longest wait for a lock in s: a signal that another thread has received is handled after it.
SLICE = 0.1


@dataclass(frozen=True)
class Program:
    """A command line to run. After TERM, its process gets ``patience`` s to end."""

    name: str
    words: Sequence[str]
    patience: float = 10.0


@dataclass(eq=False)
class Child:
    """A started process."""

    program: Program
    process: subprocess.Popen[bytes]
    ended: threading.Event = field(default_factory=threading.Event)


class ProcessGroup:
    """Child processes, each in its own session: Ctrl-C reaches only this process, which ends them by pid."""

    def __init__(self, environ: Mapping[str, str], ended: Callable[[Child], None]) -> None:
        """``ended`` is called in a thread for each process that has ended, for any reason."""
        self._environ = {**os.environ, **environ}
        self._ended = ended
        self._children: list[Child] = []

    def start(self, programs: Iterable[Program]) -> None:
        """Start each program."""
        for program in programs:
            process = subprocess.Popen(  # noqa: S603 - a list of our own words
                list(program.words), env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True
            )
            child = Child(program, process)
            self._children.append(child)
            threading.Thread(
                target=self._wait, args=(child,), name=f"wait for {program.name}", daemon=True
            ).start()

    def stop(self, programs: Collection[Program], late: Callable[[], None]) -> bool:
        """End the processes of some programs. Return whether each ended in time, without being killed.

        ``late`` is called once if one of them runs for more than ``LATE`` s after TERM.
        """
        children = [child for child in self._children if child.program in programs]
        for child in children:
            child.process.terminate()
        begin = time.monotonic()
        if not all(_ended_by(child, begin + LATE) for child in children):
            late()
        in_time = [_ended_by(child, begin + child.program.patience) for child in children]
        for child in children:
            child.process.kill()
            child.ended.wait()
            self._children.remove(child)
        return all(in_time)

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
