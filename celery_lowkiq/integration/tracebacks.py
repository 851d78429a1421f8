"""An error with the way that led to it: ``lowkiq_format_error = "traceback"``."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import celery

#: Frames of these folders come before the task's function, and tell nothing.
OURS = (str(Path(celery.__file__).parent), str(Path(__file__).parents[1]))
#: Characters that are kept: the beginning, and more of the end, where the error stands.
BEGINNING, END = 1000, 5000


def format_traceback(error: BaseException) -> str:
    """As Python prints it, from the task's function on; the error is its last line."""
    text = "".join(traceback.format_exception(type(error), error, _of_users(error.__traceback__))).strip()
    if len(text) <= BEGINNING + END:
        return text
    return f"{text[:BEGINNING]}\n  [...]\n{text[-END:]}"


def _of_users(found: TracebackType | None) -> TracebackType | None:
    while found is not None and found.tb_frame.f_code.co_filename.startswith(OURS):
        found = found.tb_next
    return found
