"""One question to the store about all shards whose lanes have nothing to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from celery_lowkiq.rules.claims import Due, InHand
from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.errors import ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import ShardRef

from ..outage import Outage
from ..ports import Store

if TYPE_CHECKING:
    from .lane import Lane

logger = logging.getLogger("celery_lowkiq.worker")


@dataclass(frozen=True)
class Question:
    """About one shard of a lane; ``number`` tells its answer from that of an earlier one."""

    shard: ShardRef
    in_hand: InHand
    number: int


class Survey:
    """Asked by the lane whose time has come, for all that are idle: one round trip a poll and node, and one
    each time that shards come.
    """

    def __init__(self, store: Store, outage: Outage, lanes: Sequence[Lane], clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._outage = outage
        self._lanes = lanes

    def ask(self, asking: Lane, everything: bool, give_up: Callable[[], bool]) -> None:
        """Tell the lanes when their shards have work next: all, or those that were never asked about."""
        asked = [(lane, lane.questions(asking is lane, everything)) for lane in self._lanes]
        questions = [question for _, several in asked for question in several]
        if not questions:
            return
        shards = [question.shard for question in questions]
        in_hand = [question.in_hand for question in questions]
        try:
            dues, seconds = self._outage.survive(lambda: self._timed(shards, in_hand), give_up)
        except StoreUnavailable:
            return
        except StoreError as error:
            # Of damage its text says all.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error("%s tries its shards one by one: %s", asking.name, error, exc_info=cause)
            for lane, _ in asked:
                lane.try_all()
            return
        answers = zip(questions, dues, strict=True)
        for lane, several in asked:
            lane.learn(list(islice(answers, len(several))), seconds)

    def _timed(self, shards: Sequence[ShardRef], in_hand: Sequence[InHand]) -> tuple[list[Due], float]:
        asked_at = self._clock.monotonic()
        dues = self._store.next_due(shards, in_hand)
        return dues, self._clock.monotonic() - asked_at
