"""Processes of tests that find Celery and the package imported, which takes 0.6 s of a core in each.

A template process imports them and makes nothing with them. For each process it forks one, which goes on as
``python -m module`` or ``python -c code`` would, as a child of the process that asked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery_lowkiq.cli.main",
    "celery_lowkiq.integration.bootstep.step",
    "kombu.transport.redis",
)
#: What an interpreter, the C library, or Celery when it is imported reads; and other modules than ours.
AT_START = ("PYTHON", "LANG", "LC_", "TZ", "REMAP_SIGTERM")
PR_SET_CHILD_SUBREAPER = 36
#: Default values of Popen's gid, gids, uid, umask, start_new_session and process_group.
PLAIN = (None, None, None, -1, False, -1)


class Process(subprocess.Popen[Any]):
    """A Popen that is forked from the template where it would run this Python, and where that is the same.

    It is not on other systems than Linux, with variables that count when an interpreter starts, with a pool
    that patches Python before the imports, and while coverage is measured, which must start before them.
    """

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Mapping[str, Any] | None,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *descriptors_and_more: Any,
    ) -> None:
        variables = {name: os.fspath(value) for name, value in (os.environ if env is None else env).items()}
        descriptors, more = descriptors_and_more[:6], descriptors_and_more[6:]
        is_plain = not (preexec_fn or pass_fds or shell) and more[1:] == PLAIN[: len(more) - 1]
        if not is_plain or not _is_the_same(args, variables):
            prepared = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env)
            super()._execute_child(  # type: ignore[misc]
                *prepared, startupinfo, creationflags, shell, *descriptors, *more
            )
            return
        stdin, _, _, stdout, _, stderr = descriptors
        streams = [given if given != -1 else own for own, given in enumerate((stdin, stdout, stderr))]
        try:
            self.pid = _template().fork([*args[1:]], variables, streams, os.fspath(cwd or "."))
        finally:
            self._close_pipe_fds(*descriptors)  # type: ignore[attr-defined]
        self._child_created = True


def run(words: list[str], seconds: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Its status, and what it wrote. Raises TimeoutExpired when it does not end within the time."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(words, text=True, **{**streams, **more}) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _is_the_same(args: Sequence[str], variables: Mapping[str, str]) -> bool:
    return (
        sys.platform == "linux"
        and args[0] == sys.executable
        and args[1] in ("-c", "-m")
        and not {"gevent", "eventlet"}.intersection(args)
        and not any(name.startswith("COVERAGE_PROCESS") for name in variables)
        and _at_start(variables) == _at_start(os.environ)
    )


def _at_start(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(AT_START)}


class _Template:
    """The process that is forked, seen from here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None)
        self._socket, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", "tests.processes", str(theirs.fileno())]
            # A process that is forked adds its own.
            env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self.process = subprocess.Popen(words, cwd=ROOT, env=env, pass_fds=[theirs.fileno()])

    def fork(self, words: list[str], variables: dict[str, str], streams: list[int], cwd: str) -> int:
        """Its pid. It is this process's child: its parent ends, and this process adopts it."""
        asked = json.dumps({"words": words, "env": variables, "cwd": os.path.abspath(cwd)}).encode()
        with self._lock:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [len(asked).to_bytes(8, "big")], streams)
                self._socket.sendall(asked)
                answer = self._received(9)
            finally:
                self._libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
        if len(answer) < 9:
            raise RuntimeError("the template process has ended")
        return int.from_bytes(answer[:8], "big")

    def _received(self, size: int) -> bytes:
        """Fewer bytes at the end. A signal ends a receive, also one that waits for all."""
        found = b""
        while len(found) < size and (part := self._socket.recv(size - len(found))):
            found += part
        return found


@functools.cache
def _template() -> _Template:
    template = _Template()
    atexit.register(template.process.kill)
    return template


def main(descriptor: int) -> None:
    """Run the template process: fork on request, until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # The end of a process would look through all of it.
    with socket.socket(fileno=descriptor) as asking:
        while True:
            head, streams, _, _ = socket.recv_fds(asking, 8, 3)
            if not head:
                os._exit(0)
            asked = b""
            while len(asked) < (length := int.from_bytes(head, "big")):
                asked += asking.recv(length - len(asked))
            if not (middle := os.fork()):
                middle = os.getpid()
                if child := os.fork():
                    asking.sendall(child.to_bytes(8, "big"))
                    os._exit(0)
                break
            os.waitpid(middle, 0)  # Until then the child is its, not of the process that asked.
            asking.sendall(b"\0")
            for stream in streams:
                os.close(stream)
    with contextlib.suppress(ProcessLookupError):  # It has ended.
        pidfd = os.pidfd_open(middle)
        select.select([pidfd], [], [])
        os.close(pidfd)
    _become(streams=streams, **json.loads(asked))


def _become(words: list[str], env: dict[str, str], streams: list[int], cwd: str) -> None:
    os.chdir(cwd)
    sys.path[1:1] = [os.path.abspath(name) for name in env.get("PYTHONPATH", "").split(os.pathsep) if name]
    os.environ.clear()
    os.environ.update(env)
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    sys.stdin = sys.__stdin__ = _stream(0, sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if words[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = "", ["-c", *words[2:]]
        sys.modules["__main__"] = made = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(made))


def _stream(descriptor: int, like: Any) -> TextIOWrapper:
    """As the interpreter makes it at its start: what it is like knows another file."""
    writes = descriptor > 0
    buffering = 0 if writes and os.environ.get("PYTHONUNBUFFERED") else -1
    binary: Any = open(descriptor, "wb" if writes else "rb", buffering, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = like.name
    by_lines = not like.write_through and (os.isatty(descriptor) or descriptor == 2)
    stream = TextIOWrapper(
        binary,
        like.encoding,
        like.errors,
        "\n" if writes else None,
        by_lines,
        write_through=like.write_through,
    )
    stream.mode = "w" if writes else "r"  # type: ignore[misc]
    return stream


if __name__ == "__main__":
    main(int(sys.argv[1]))
