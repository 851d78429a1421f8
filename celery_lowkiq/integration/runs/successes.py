"""Ids of runs that have succeeded in this process, for ``celery.worker.state.successful_requests``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from celery.utils.collections import LimitedSet
from celery.worker import state

#: Ids that nothing has looked for yet: to put one into Celery's set takes 50 times as long.
succeeded: deque[str] = deque(maxlen=state.SUCCESSFUL_MAX)


class Successes(LimitedSet):
    """Celery's set, which takes the ids of runs in lanes when something reads it."""

    def _take(self) -> None:
        while succeeded:
            self.add(succeeded.popleft())

    def __contains__(self, task_id: object) -> bool:
        self._take()
        return super().__contains__(task_id)

    def __iter__(self) -> Iterator[Any]:
        self._take()
        return super().__iter__()

    def __len__(self) -> int:
        self._take()
        return super().__len__()


# Modules of Celery have the object by its name.
state.successful_requests.__class__ = Successes
