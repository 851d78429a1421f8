"""Changes by commands, in the audit log with the user of the system."""

from __future__ import annotations

import getpass
import platform
from collections.abc import Callable

import click

from celery_lowkiq.integration.operations.audit import Audit, Change


def audited(change: Change, act: Callable[[], int]) -> int:
    """Return ``act()``, a count of jobs, with an entry before and after it. Raises what ``act`` raises."""
    return Audit(click.get_current_context().obj.app).around(change, act)


def asker() -> tuple[str, str]:
    """The user of the system who runs the command, and its machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return user, f"command line of {platform.node()}"
