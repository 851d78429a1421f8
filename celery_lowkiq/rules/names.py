"""Names as people type them: the last part of one, or one with a typing error."""

from __future__ import annotations

import difflib
from collections.abc import Collection

#: So many names are listed in a message.
LISTED = 20


def full_names(given: str, known: Collection[str]) -> list[str]:
    """The known names that are meant: the name itself, else those that end with it after a dot, sorted."""
    if given in known:
        return [given]
    return sorted(name for name in known if given and name.endswith(f".{given}"))


def similar_names(given: str, known: Collection[str]) -> list[str]:
    """The known names that look like it, the most similar first; the last part of a name counts, too."""
    by_part: dict[str, list[str]] = {}
    for name in sorted(known):
        for part in {name, name.rpartition(".")[2]}:
            by_part.setdefault(part, []).append(name)
    close = difflib.get_close_matches(given, by_part, n=3, cutoff=0.75)
    return list(dict.fromkeys(name for part in close for name in by_part[part]))[:3]


def did_you_mean(given: str, known: Collection[str]) -> str:
    """A sentence for the end of a message; without a similar name, the empty text."""
    found = similar_names(given, known)
    return f"Did you mean {' or '.join(map(repr, found))}?" if found else ""


def listed(names: Collection[str]) -> str:
    """The names in one line, sorted; of a long list the beginning."""
    shown = sorted(names)[:LISTED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
