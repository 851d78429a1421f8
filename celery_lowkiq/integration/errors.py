"""An exception as the text of a job's error, and back. The user's functions may fail; a lane may not."""

from __future__ import annotations

from .careful import careful_logger
from .settings import Settings, default_format_error

logger = careful_logger("celery_lowkiq")

#: Longest stored error, in bytes.
MAX_ERROR_BYTES = 8 * 1024


def dump_error(settings: Settings, error: BaseException) -> bytes:
    """What is stored of an exception, at most 8 KiB."""
    return dump_error_text(settings, format_error(settings, error))


def dump_error_text(settings: Settings, text: str) -> bytes:
    """What is stored of a text, at most 8 KiB; the text is cut before ``lowkiq_dump_error`` sees it."""
    text = _cut(text)
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
    try:
        return default_format_error(error)
    except Exception:
        logger.exception("an error cannot be shown as text")
        return type(error).__name__


def _cut(text: str) -> str:
    data = text.encode("utf-8", "backslashreplace")
    return data[:MAX_ERROR_BYTES].decode("utf-8", "ignore")
