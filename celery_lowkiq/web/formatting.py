"""Values as text for pages; templates escape it."""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import dataclass, replace

from markupsafe import Markup

from celery_lowkiq.integration.json_records import ShownPayload
from celery_lowkiq.rules.job_filter import age_seconds
from celery_lowkiq.rules.text import duration

#: Maximum length of one payload on a page, in characters.
MAX_TEXT = 64 * 1024
#: Maximum length of all payloads on a page, and minimum length of each, in characters.
MAX_PAGE, LEAST = 512 * 1024, 500
#: JSON up to this length is shown in one line.
ONE_LINE = 100
#: A score in this range (Unix s) is shown as a time, too: the years 2001 to 2286.
TIMES = (1e9, 1e10)


def plain(text: str) -> str:
    """Escape control and formatting characters, which could hide or reorder text."""
    return "".join(_spelled(c) if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") else c for c in text)


def _spelled(character: str) -> str:
    return character if character in "\n\t" else character.encode("unicode_escape").decode("ascii")


def code(text: str) -> Markup:
    """Return text as HTML, with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def per_second(value: float) -> str:
    """Format a number a second: ``71/s``, ``0.3/s``."""
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"


def score(value: float) -> str:
    """Format a score without loss of precision."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def is_time(score: float) -> bool:
    """Return True if a score looks like a Unix time."""
    return TIMES[0] <= score < TIMES[1]


def age(text: str) -> str:
    """Write an age of a filter in words: ``over 2 h`` for ``>2h``."""
    seconds = age_seconds(text[1:])
    return text if seconds is None else f"{'over' if text[0] == '>' else 'under'} {duration(seconds)}"


def bytes_text(data: bytes) -> str:
    """Decode UTF-8; other bytes are shown as a Python literal."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return repr(data)


def payload_text(payload: ShownPayload, limit: int = MAX_TEXT) -> str:
    """Format a payload: JSON, indented when it is long; other content as bytes."""
    data: bytes = payload.value
    if payload.cut_from:
        return bytes_text(_whole_characters(data[:limit]))[:limit]
    text = _json(data)
    if text is None:
        text = bytes_text(data) + (f"\n({payload.fault})" if payload.fault else "")
    return text[:limit]


@dataclass
class Texts:
    """Formats the payloads of one page, with about MAX_PAGE characters in all."""

    left: int = MAX_PAGE

    def __call__(self, payload: ShownPayload) -> tuple[str, int]:
        """Return the text, and the full size in bytes if it is cut, else 0."""
        payload = beginning(payload)
        limit = max(LEAST, min(MAX_TEXT, self.left))
        text = payload_text(payload, limit)
        self.left -= len(text)
        return text, (payload.cut_from or len(payload.value)) if payload.cut_from or len(text) == limit else 0


def beginning(payload: ShownPayload) -> ShownPayload:
    """Cut a payload to what a page shows."""
    size = len(payload.value)
    return payload if size <= MAX_TEXT else replace(payload, value=payload.value[:MAX_TEXT], cut_from=size)


def _json(data: bytes) -> str | None:
    try:
        value = json.loads(data)
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= ONE_LINE else json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _whole_characters(data: bytes) -> bytes:
    """Remove an incomplete last character."""
    return data.decode("utf-8", "ignore").encode() if _is_text(data) else data


def _is_text(data: bytes) -> bool:
    try:
        data[:-4].decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end >= len(data) - 8
    return True
