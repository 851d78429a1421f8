"""Tests of ordered tasks, with a private Redis server and a clock that tests can move.

This package is a plugin of pytest, which loads it when celery-lowkiq is installed.
"""

from __future__ import annotations

from .store import Clock, Lowkiq

__all__ = ["Clock", "Lowkiq"]

try:
    from .fixtures import lowkiq, lowkiq_app, lowkiq_server
except ModuleNotFoundError as error:  # unittest needs no pytest
    if error.name != "pytest":
        raise
else:
    __all__ += ["lowkiq", "lowkiq_app", "lowkiq_server"]
