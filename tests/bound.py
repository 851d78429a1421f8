"""Functions of the store with a client bound: short words for tests."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from celery_lowkiq.store import actions, counts, diagnosis
from celery_lowkiq.store.client import Client


class _Bound:
    module: ModuleType

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self.module, name), self._client)


class Queries(_Bound):
    module = counts


class Diagnosis(_Bound):
    module = diagnosis


class Pausing(_Bound):
    module = actions


class Actions(_Bound):
    """Changes of jobs. ``left`` gets the calls of jobs that are removed without a run."""

    module = actions

    def __init__(self, client: Client, left: actions.Left | None = None) -> None:
        super().__init__(client)
        self._left = left

    def __getattr__(self, name: str) -> Any:
        bound = super().__getattr__(name)
        return partial(bound, left=self._left) if name in ("bury", "delete", "edit") else bound
