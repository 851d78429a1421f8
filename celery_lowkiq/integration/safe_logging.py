"""Logging of errors whose texts may fail, and their tracebacks."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import celery

from celery_lowkiq.rules.basics import package_logger

# Logger for exceptions of user code, which works even if their ``__str__`` or ``__repr__`` raises.

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class SafeLogger(Adapter):
    """Logs the current exception, or only the name of its class when the exception cannot be formatted."""

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the current exception at level ERROR."""
        error_class = sys.exc_info()[0]
        try:
            super().exception(msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001 - `logging` itself fails when it reports its failure
            name = error_class.__name__ if error_class else "nothing"
            self.error(f"{msg}, by a {name} that cannot be formatted", *args, stacklevel=2, **kwargs)


safe_logger: SafeLogger = SafeLogger(package_logger, {})


# Formats exceptions as tracebacks, the default of ``lowkiq_format_error``.

#: Folders whose frames precede the task's function and are omitted.
FRAMEWORK = tuple(f"{folder}{os.sep}" for folder in (Path(celery.__file__).parent, Path(__file__).parents[1]))
#: Bytes kept: of the beginning and the end of the frames, and of the beginning of the message.
FRAMES_BEGINNING, FRAMES_END, MESSAGE = 1000, 4500, 2000


def format_traceback(error: BaseException) -> str:
    """Format as Python does, from the task's function on, without local variables; at most 8 KiB."""
    return "".join(traceback_parts(error))


def traceback_parts(error: BaseException) -> tuple[str, str]:
    """Return the frames and the message of :func:`format_traceback`."""
    formatter = traceback.TracebackException(type(error), error, _from_user_code(error.__traceback__))
    message = "".join(formatter.format_exception_only()).strip()
    whole = "".join(formatter.format()).strip()
    # An exception group has its message before its errors.
    frames = whole.removesuffix(message) if whole.endswith(message) else f"{whole}\n"
    return cut(frames, FRAMES_BEGINNING, FRAMES_END), cut(message, MESSAGE, 0)


def cut(text: str, beginning: int, end: int) -> str:
    """Cut a text longer than ``beginning + end`` bytes of UTF-8 to these parts of it."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= beginning + end:
        return text
    last = data[len(data) - end :].decode("utf-8", "ignore")
    return f"{data[:beginning].decode('utf-8', 'ignore')}\n  [...]\n{last}".removesuffix("\n  [...]\n")


def _from_user_code(frame: TracebackType | None) -> TracebackType | None:
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(FRAMEWORK):
        frame = frame.tb_next
    return frame
