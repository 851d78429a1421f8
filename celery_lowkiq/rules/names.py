"""Resolve names that users type: by their last part, and suggestions for misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from celery_lowkiq.rules import text

#: Maximum number of names in a message.
LISTED = 20


def full_names(given: str, known: Collection[str]) -> list[str]:
    """Return the name itself if it is known, else the known names that end with it after a dot, sorted."""
    if given in known:
        return [given]
    return sorted(name for name in known if given and name.endswith(f".{given}"))


def similar_names(given: str, known: Collection[str]) -> list[str]:
    """Return known names that look similar, the best match first; last parts of names count, too."""
    by_part: dict[str, list[str]] = {}
    for name in sorted(known):
        for part in {name, name.rpartition(".")[2]}:
            by_part.setdefault(part, []).append(name)
    close = difflib.get_close_matches(given, by_part, n=3, cutoff=0.75)
    return list(dict.fromkeys(name for part in close for name in by_part[part]))[:3]


def did_you_mean(given: str, known: Collection[str]) -> str:
    """Return a sentence that suggests similar names, or an empty string."""
    similar = similar_names(given, known)
    return f"Did you mean {' or '.join(map(repr, similar))}?" if similar else ""


def listed(names: Collection[str]) -> str:
    """Return the names on one line, sorted; at most LISTED of them."""
    return text.listed(sorted(names), LISTED)
