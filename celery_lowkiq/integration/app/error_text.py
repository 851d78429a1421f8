"""An exception as the text of a job's error, and back: the one place that decides what of an exception is
stored, told to trackers and logged. The user's functions may fail; a lane may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from celery_lowkiq.rules.text import error_line

from .safe_logging import careful_logger
from .settings import Settings, format_message
from .tracebacks import cut, format_traceback

logger = careful_logger("celery_lowkiq")

#: Longest stored error, in bytes.
MAX_ERROR_BYTES = 8 * 1024


#: Of a text that is too long, bytes of its beginning, and of its end, where a traceback has its error.
BEGINNING, END = 1000, 7000


class ErrorText(NamedTuple):
    """All that is kept of an exception."""

    #: As it is stored, at most 8 KiB.
    data: bytes
    #: The same, read back.
    text: str
    #: With the way that led to it, for the log.
    traceback: str

    @property
    def line(self) -> str:
        """In one line, for the log."""
        return error_line(self.text)


def error_text(settings: Settings, error: BaseException) -> ErrorText:
    """What is kept of an exception."""
    text = format_error(settings, error)
    stored = dump_error_text(settings, text)
    way = text if settings.format_error is format_traceback else _shown(format_traceback, error)
    return ErrorText(stored, load_error(settings, stored) or "", way)


def said(settings: Settings, error: BaseException) -> str:
    """What an exception says, in one line, for trackers."""
    return error_line(format_error(settings, error))


def dump_error(settings: Settings, error: BaseException) -> bytes:
    """What is stored of an exception, at most 8 KiB."""
    return dump_error_text(settings, format_error(settings, error))


def dump_error_text(settings: Settings, text: str) -> bytes:
    """What is stored of a text, at most 8 KiB; the text is cut before ``lowkiq_dump_error`` sees it."""
    text = cut(text, BEGINNING, END)
    try:
        data = settings.dump_error(text)
        if isinstance(data, bytes) and len(data) <= MAX_ERROR_BYTES:
            return data
        logger.error(
            "lowkiq_dump_error returned no bytes, or more than %d: the text is stored", MAX_ERROR_BYTES
        )
    except Exception:
        logger.exception("lowkiq_dump_error failed: the text is stored as it is")
    return text.encode("utf-8", "backslashreplace")[:MAX_ERROR_BYTES]


def load_error(settings: Settings, data: bytes | None) -> str | None:
    """Text of a stored error; bytes that ``lowkiq_load_error`` refuses are shown as they are."""
    if data is None:
        return None
    try:
        return str(settings.load_error(data))
    except Exception:
        logger.exception("lowkiq_load_error failed on an error of %d bytes", len(data))
        return data.decode("utf-8", "backslashreplace")


def format_error(settings: Settings, error: BaseException) -> str:
    """Text of an exception, as ``lowkiq_format_error`` has it."""
    try:
        return str(settings.format_error(error))
    except Exception:
        logger.exception("lowkiq_format_error failed on %s", type(error).__name__)
    return _shown(format_message, error)


def _shown(form: Callable[[BaseException], str], error: BaseException) -> str:
    """By a function of ours; the name of its class, of an error that cannot be shown."""
    try:
        return form(error)
    except Exception:
        logger.exception("an error cannot be shown as text")
        return type(error).__name__
