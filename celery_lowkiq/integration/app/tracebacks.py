"""An error with the way that led to it: stored of it unless ``lowkiq_format_error`` says otherwise."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType

import celery

#: Frames of these folders come before the task's function, and tell nothing.
OURS = tuple(f"{folder}{os.sep}" for folder in (Path(celery.__file__).parent, Path(__file__).parents[2]))
#: Bytes that are kept: the beginning and the end of the way to the error, and the beginning of what it says.
WAY_BEGINNING, WAY_END, SAID = 1000, 4500, 2000


def format_traceback(error: BaseException) -> str:
    """As Python prints it, from the task's function on and without local variables; at most 8 KiB."""
    found = traceback.TracebackException(type(error), error, _of_users(error.__traceback__))
    said = "".join(found.format_exception_only()).strip()
    whole = "".join(found.format()).strip()
    # A group tells what it is before it tells of its errors.
    way = whole.removesuffix(said) if whole.endswith(said) else f"{whole}\n"
    return cut(way, WAY_BEGINNING, WAY_END) + cut(said, SAID, 0)


def cut(text: str, beginning: int, end: int) -> str:
    """A text of which, when it is longer than both together, so many bytes of UTF-8 are kept."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= beginning + end:
        return text
    last = data[len(data) - end :].decode("utf-8", "ignore")
    return f"{data[:beginning].decode('utf-8', 'ignore')}\n  [...]\n{last}".removesuffix("\n  [...]\n")


def _of_users(found: TracebackType | None) -> TracebackType | None:
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OURS):
        found = found.tb_next
    return found
