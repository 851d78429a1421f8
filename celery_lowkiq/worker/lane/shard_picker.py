"""The shard that a scheduler picks, checked: a scheduler may be the user's."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.schedulers import Scheduler, lag

logger = logging.getLogger("celery_lowkiq.worker")


class Picking:
    """Asks a lane's scheduler. A wrong answer is logged once, and the pick is made by lag instead."""

    def __init__(self, scheduler: Scheduler, lane: str) -> None:
        self._scheduler = scheduler
        self._lane = lane
        self._by_lag = lag()
        self._failing = False

    def pick(self, due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        """One of the shards whose due time has come; None when there is none, or the scheduler wants none."""
        ready = {shard: when for shard, when in due.items() if when <= now}
        if not ready:
            return None
        try:
            shard = self._scheduler(ready, now)
            wrong = shard is not None and due.get(shard, math.inf) > now
        except Exception:  # noqa: BLE001 - of the user's; it is logged
            self._tell("lowkiq_scheduler failed on %s: it picks by lag until that works", exc_info=True)
            return self._by_lag(due, now)
        if wrong:
            self._tell(
                "lowkiq_scheduler gave %s %r, which is none of the shards with due jobs: it picks by lag "
                "until the answer is one of them, or None",
                shard,
            )
            return self._by_lag(due, now)
        self._failing = False
        return shard

    def _tell(self, text: str, *values: object, exc_info: bool = False) -> None:
        if not self._failing:
            self._failing = True
            logger.error(text, self._lane, *values, exc_info=exc_info)
