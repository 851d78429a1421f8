"""Text of exceptions, as stored, logged and passed to trackers.

The user's formatting functions may fail; a lane must not, so failures are logged and a fallback is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from celery_lowkiq.integration.safe_logging import FRAMEWORK, cut, format_traceback, traceback_parts
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.integration.settings import Settings, format_message
from celery_lowkiq.rules.fingerprints import fingerprint, mark_error, read_mark
from celery_lowkiq.rules.models import Failure
from celery_lowkiq.rules.text import TRACEBACK, last_error_line

#: Maximum size of a stored error, in bytes.
MAX_ERROR_BYTES = 8 * 1024
#: Bytes kept of a longer text: of its beginning, and of its end, where a traceback has its error.
BEGINNING, END = 1000, 7000
#: Stands in the error of a job for the frames, which its group keeps.
FRAMES = "  [its frames are with failure {}]"
#: Stands in its place when there is no such group.
NO_FRAMES = (
    "  [its frames are not known here: the group was forgotten or is unreachable, or a dump brought the job]"
)


class ErrorText(NamedTuple):
    """The stored and logged forms of an exception."""

    #: The stored bytes: at most 8 KiB, and the fingerprint.
    data: bytes
    #: The text decoded from ``data``.
    text: str
    #: The traceback, for the log.
    traceback: str
    failure: Failure | None = None

    @property
    def line(self) -> str:
        """One line, for the log."""
        return last_error_line(self.text)


def error_text(settings: Settings, error: BaseException, secrets: Collection[str] = ()) -> ErrorText:
    """Return the stored and logged forms of an exception, with what ``lowkiq_redact`` names masked.

    ``secrets``: values of the payloads, which are masked wherever they occur.
    """
    clean = partial(settings.redactor.text, secrets=secrets)
    own = fingerprint(error, FRAMEWORK, clean)
    frames, message = map(clean, _frames_and_message(settings, error))
    stored = dump_error_text(settings, frames + message)
    shown = load_error(settings, stored) or ""
    if frames:
        # The last line of the frames of a SyntaxError is the indent of its message.
        indent = frames.rpartition("\n")[2]
        stored = dump_error_text(settings, f"{TRACEBACK}\n{FRAMES.format(own.id)}\n{indent}{message}")
    trace = frames + message if frames else clean(_formatted(format_traceback, error))
    about = dump_error_text(settings, "\0".join((own.error, own.where, frames, message)))
    return ErrorText(mark_error(own.id, stored), shown, trace, Failure(own.id, about))


def _frames_and_message(settings: Settings, error: BaseException) -> tuple[str, str]:
    """The parts of a traceback. Text of another format has no frames that failures have in common."""
    if settings.format_error is format_traceback:
        try:
            return traceback_parts(error)
        except Exception:
            logger.exception("could not format a traceback")
    return "", format_error(settings, error)


def with_frames(text: str, print_id: str, frames: str) -> str:
    """Put the frames of its group into the text of an error; without any, that they are not stored."""
    begin = f"{TRACEBACK}\n{FRAMES.format(print_id)}\n"
    return text.replace(begin, frames.rstrip(" ") or f"{TRACEBACK}\n{NO_FRAMES}\n", 1)


def said(settings: Settings, error: BaseException, secrets: Collection[str] = ()) -> str:
    """Return the exception in one line, for trackers, with what ``lowkiq_redact`` names masked."""
    return settings.redactor.text(last_error_line(format_error(settings, error)), secrets)


def dump_error(settings: Settings, error: BaseException) -> bytes:
    """Return the stored form of an exception, at most 8 KiB."""
    return dump_error_text(settings, format_error(settings, error))


def dump_error_text(settings: Settings, text: str) -> bytes:
    """Return the stored form of a text, at most 8 KiB; it is cut before ``lowkiq_dump_error`` is called."""
    text = cut(settings.redactor.text(text), BEGINNING, END)
    try:
        data = settings.dump_error(text)
        if isinstance(data, bytes) and len(data) <= MAX_ERROR_BYTES:
            return data
        logger.error("lowkiq_dump_error did not return at most %d bytes: the text is stored", MAX_ERROR_BYTES)
    except Exception:
        logger.exception("lowkiq_dump_error failed: the text is stored")
    return text.encode("utf-8", "backslashreplace")[:MAX_ERROR_BYTES]


def load_error(settings: Settings, data: bytes | None) -> str | None:
    """Return the text of a stored error; when ``lowkiq_load_error`` fails, decode the bytes as UTF-8."""
    if data is None:
        return None
    _, data = read_mark(data)
    try:
        return str(settings.load_error(data))
    except Exception:
        logger.exception("lowkiq_load_error failed on an error of %d bytes", len(data))
        return data.decode("utf-8", "backslashreplace")


def format_error(settings: Settings, error: BaseException) -> str:
    """Return the text of an exception by ``lowkiq_format_error``."""
    try:
        return str(settings.format_error(error))
    except Exception:
        logger.exception("lowkiq_format_error failed on %s", type(error).__name__)
    return _formatted(format_message, error)


def _formatted(format_function: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return format_function(error)
    except Exception:
        logger.exception("could not format an error: its class name is used")
        return type(error).__name__
