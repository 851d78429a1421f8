"""Times on pages: relative to now, or in a time zone. The dashboard and Flower share them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from html import escape
from zoneinfo import ZoneInfo

from .text import moment, relative

#: The setting for times relative to now, whose titles are in UTC.
RELATIVE = "relative"
#: What :func:`text.moment` writes.
_MOMENTS = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)", re.ASCII)


@dataclass(frozen=True)
class Times:
    """How times are written; ``name`` is ``"relative"`` or that of the zone."""

    name: str = RELATIVE
    zone: tzinfo = timezone.utc

    @classmethod
    def of(cls, name: str) -> Times:
        """Raises ValueError for an unknown name."""
        if name in (RELATIVE, "UTC"):
            return cls(name)
        try:
            return cls(name, ZoneInfo(name))
        except (KeyError, OSError, TypeError, AttributeError) as error:
            raise ValueError from error

    def exact(self, at: float) -> str:
        """Format a Unix time (s) to the second."""
        return moment(at, self.zone)

    def element(self, at: float, now: float) -> str:
        """Return the HTML element of a Unix time (s)."""
        return self._element(at, relative(at, now) if self.name == RELATIVE else self.exact(at))

    def clock(self, at: float, words: str) -> str:
        """Return the HTML element of hour and minute; relative times are ``words`` instead."""
        text = words if self.name == RELATIVE else f"{datetime.fromtimestamp(at, self.zone):%H:%M}"
        return self._element(at, text, f' data-words="{escape(words)}"')

    def marked(self, text: str, clean: Callable[[str], str] = str) -> str:
        """Return text as HTML; its moments in UTC become elements in the zone."""
        parts = _MOMENTS.split(text)
        return "".join(
            self._moment(part) if place % 2 else escape(clean(part)) for place, part in enumerate(parts)
        )

    def _moment(self, text: str) -> str:
        try:
            at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S %Z").replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            return text
        return self._element(at, self.exact(at), " data-exact")

    def _element(self, at: float, text: str, more: str = "") -> str:
        stamp = iso(at)
        if not stamp:
            return f"<time>{escape(text)}</time>"
        return f'<time datetime="{stamp}" title="{escape(self.exact(at))}"{more}>{escape(text)}</time>'


def iso(at: float) -> str:
    """Format a Unix time (s) as ``2026-11-21T10:00:00Z``; "" for one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return ""
