"""A pickle that leaves a trace when it is decoded."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from celery_lowkiq.integration.codec import MARK


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def trap(path: Path) -> bytes:
    """Return a stored payload that creates a file when it is decoded."""
    return MARK + b"application/x-python-serialize\0binary\0" + pickle.dumps(Trap(path))
