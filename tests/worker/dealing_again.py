"""The same tasks under another ``-A``, with other memory addresses."""

from __future__ import annotations

BEFORE = [lambda number=number: number for number in range(997)]

from tests.worker.dealing import app  # noqa: E402

__all__ = ["BEFORE", "app"]
