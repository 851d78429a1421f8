"""The app as a command names it, for commands that advice shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from celery import Celery

#: How texts that know no app begin a command.
COMMAND = "celery -A proj "


def naming(text: str, app: Celery) -> str:
    """Return the text with commands that name the app: as this process's own command, else by its name."""
    name = _given(sys.argv) or app.main
    return text.replace(COMMAND, f"celery -A {name} ") if name else text


def _given(argv: Sequence[str]) -> str:
    """What -A, or the variable in place of it, says in a command line of Celery."""
    if "celery" not in argv[0]:
        return ""
    for place, word in enumerate(argv[1:], 1):
        if word in ("-A", "--app"):
            return argv[place + 1] if place + 1 < len(argv) else ""
        if word.startswith("--app="):
            return word.removeprefix("--app=")
        if word.startswith("-A"):
            return word.removeprefix("-A")
    return os.environ.get("CELERY_APP") or os.environ.get("APP") or ""
