"""The text of an error in the log of a job's tries, which ``scripts/lib/tries.lua`` writes."""

from __future__ import annotations

from celery_lowkiq.rules.text import last_error_line

#: Maximum bytes of an error in the log.
MAX_TEXT = 160


def try_text(error: str | None) -> bytes:
    """Return the line of an error for the log."""
    words = " ".join(last_error_line(error or "").split())
    return words.encode("utf-8", "backslashreplace")[:MAX_TEXT]
