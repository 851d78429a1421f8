"""Findings of health checks, and the words that they share."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"
#: Maximum number of shards, or of names, in a finding.
LISTED = 10


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``level``: ok, warning or error; ``advice``: what to do, empty for nothing."""

    level: str
    subject: str
    text: str
    advice: str = ""


def counted(count: int, one: str, more: str) -> str:
    """Return a count with the word for one, or for more."""
    return f"{count} {one if count == 1 else more}"
