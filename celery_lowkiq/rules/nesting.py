"""How deep values may be that are written as JSON: an encoder fails at some depth, wherever it began."""

from __future__ import annotations

from typing import Any

#: A value that can be written within so many lists can be, whatever stands around it.
SPARE_DEPTH = 50


def within_lists(value: Any) -> Any:
    """The value within as many."""
    for _ in range(SPARE_DEPTH):
        value = [value]
    return value
