"""Tests of ordered tasks, with a private Redis server and a clock that tests can move.

This package is a plugin of pytest, which loads it when celery-lowkiq is installed.
"""

from __future__ import annotations

from importlib.util import find_spec

from celery_lowkiq.testing.store import Clock, Lowkiq

__all__ = ["Clock", "Lowkiq"]

if find_spec("pytest"):  # unittest needs none
    from celery_lowkiq.testing.fixtures import lowkiq, lowkiq_app, lowkiq_redis, lowkiq_server
    from celery_lowkiq.testing.guard import pytest_addoption, pytest_runtest_protocol

    __all__ += ["lowkiq", "lowkiq_app", "lowkiq_redis", "lowkiq_server"]
    __all__ += ["pytest_addoption", "pytest_runtest_protocol"]
