"""Worker processes: started, killed, frozen, and started again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.journal import Journal

#: Seconds that a node gets to end after SIGTERM.
PATIENCE = 30.0
#: How a node ends that was asked to; by the signal itself, when it came before its handler.
STOPPED = (0, -signal.SIGTERM)


@dataclass(frozen=True)
class Crew:
    """How nodes are started: ``celery -A app worker`` with these lanes and variables."""

    app: str
    #: Part of the nodes' names.
    queue: str
    directory: Path
    lanes: int
    variables: Mapping[str, str]
    #: Whether a node may kill itself at the end of a lease.
    strict: bool = False
    log_level: str = "INFO"


class Node:
    """One worker process. A thread waits for its end and writes down when that was, and why."""

    def __init__(self, command: Sequence[str], crew: Crew, journal: Journal, log: Path) -> None:
        self._journal = journal
        self._strict = crew.strict
        self._cause: str | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **crew.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.ended = threading.Event()
        threading.Thread(target=self._reap, name=f"reaper {self._process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ended without a signal of ours."""
        return self.ended.is_set() and self._cause is None

    def kill(self) -> None:
        """SIGKILL."""
        self._end("kill", signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        self._end("stop", signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def _end(self, cause: str, how: signal.Signals) -> None:
        if not self.ended.is_set():
            self._cause = cause
            self._process.send_signal(how)

    def _reap(self) -> None:
        code = self._process.wait()
        at = time.monotonic()
        cause = self._cause
        if cause is None or (cause == "stop" and code not in STOPPED):
            killed = code == -signal.SIGKILL
            cause = "deadline" if self._strict and killed else "unexpected"
        self._journal.note("death", dead=self.pid, at=at, cause=cause, code=code)
        self.ended.set()


class Cluster:
    """Nodes by number. :meth:`tend` starts those again that ended by themselves."""

    def __init__(self, crew: Crew, journal: Journal) -> None:
        self._crew = crew
        self._journal = journal
        self._nodes: dict[int, Node] = {}
        self._leaving: list[Node] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, number: int) -> Node | None:
        """The node of that number, if the cluster is so large just now."""
        return self._nodes.get(number)

    def name(self, number: int) -> str:
        """What its leases' owner begins with."""
        return f"node{number}@{self._crew.queue}"

    def start(self, number: int) -> None:
        """Start a node."""
        options = ["-P", "threads", "-c", str(self._crew.lanes), "-n", self.name(number)]
        options += ["-l", self._crew.log_level]
        quiet = ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        command = [sys.executable, "-m", "celery", "-A", self._crew.app, "worker", *options, *quiet]
        log = self._crew.directory / f"node{number}.log"
        self._nodes[number] = Node(command, self._crew, self._journal, log)

    def move(self, shards: int) -> Callable[[], None]:
        """Start a command that moves the queue to a number of shards; return what kills it."""
        words = ["-A", self._crew.app, "lowkiq", "reshard", self._crew.queue, str(shards)]
        with (self._crew.directory / "movers.log").open("ab") as output:
            mover = subprocess.Popen(
                [sys.executable, "-m", "celery", *words],
                env={**os.environ, **self._crew.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

        def kill() -> None:
            mover.kill()
            mover.wait()

        return kill

    def kill(self, number: int) -> None:
        """SIGKILL to a node, and another in its place."""
        self._nodes[number].kill()
        self.start(number)

    def roll(self, number: int) -> None:
        """SIGTERM to a node, and another in its place."""
        self._leave(number)
        self.start(number)

    def restart(self, number: int) -> None:
        """SIGTERM to a node, and another in its place when it has ended."""
        node = self._nodes[number]
        self._leave(number)
        node.ended.wait(PATIENCE)
        self.start(number)

    def resize(self, nodes: int) -> None:
        """Start nodes, or send SIGTERM to the last ones."""
        for number in range(nodes):
            if number not in self._nodes:
                self.start(number)
        for number in [number for number in self._nodes if number >= nodes]:
            self._leave(number)

    def tend(self) -> None:
        """Start those again that ended by themselves."""
        for number, node in list(self._nodes.items()):
            if node.ended_by_itself:
                self.start(number)

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL to those that do not end by it, which is noted as unexpected."""
        for number in list(self._nodes):
            self._leave(number)
        ends_by = time.monotonic() + PATIENCE
        for node in self._leaving:
            if not node.ended.wait(max(0.0, ends_by - time.monotonic())):
                self._journal.note("death", dead=node.pid, cause="unexpected", code=None)
                node.kill()
                node.ended.wait()

    def _leave(self, number: int) -> None:
        node = self._nodes.pop(number)
        node.thaw()
        node.stop()
        self._leaving.append(node)
