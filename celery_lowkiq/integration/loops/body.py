"""A coroutine of a task's function, as the event loop runs it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Protocol

from celery_lowkiq.integration.app import current_task
from celery_lowkiq.worker.forks import staying


class Owner(Protocol):
    """What the bodies of a run belong to."""

    #: Whether one of them is on the thread of the event loop now.
    stepping: bool

    def one_ended(self) -> None:
        """A body has ended."""


class Body(Coroutine[Any, Any, None]):
    """Runs a coroutine with its task as Celery's current one, and keeps what it returns or raises.

    Celery's stack of running tasks belongs to a thread, which many coroutines share, so the task is pushed
    around each step. An exception is kept also because a SystemExit would end the event loop.
    """

    __slots__ = ("_coroutine", "_owner", "_pid", "_running", "error", "value")

    def __init__(self, running: Any, coroutine: Coroutine[Any, Any, Any], owner: Owner) -> None:
        """``running``: from ``current_task.running``."""
        self.value: Any = None
        self.error: BaseException | None = None
        self._running = running
        self._coroutine = coroutine
        self._owner = owner
        self._pid = os.getpid()

    def send(self, value: Any) -> Any:
        """Run the coroutine up to where it waits next."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception where the coroutine waits."""
        return self._step(self._coroutine.throw, *error)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        before = current_task.replace(self._running)
        self._owner.stepping = True
        try:
            return staying(self._pid, step, *given)
        except StopIteration as end:
            self.value = end.value
        except BaseException as error:  # noqa: BLE001 - the lane raises it
            self.error = error
        finally:
            self._owner.stepping = False
            current_task.restore(before)
        self._owner.one_ended()
        raise StopIteration

    def close(self) -> None:
        """Close the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("only an event loop runs it")

    @property
    def cr_frame(self) -> FrameType | None:
        """The frame of the function; for ``asyncio.Task.get_stack``."""
        frame: FrameType | None = getattr(self._coroutine, "cr_frame", None)
        return frame

    def format_stack(self) -> str:
        """Where the coroutine waits, as text."""
        frames, waiting = [], self._coroutine
        while (frame := getattr(waiting, "cr_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            waiting = waiting.cr_await  # type: ignore[attr-defined]
        return "".join(traceback.StackSummary.extract(iter(frames)).format())
