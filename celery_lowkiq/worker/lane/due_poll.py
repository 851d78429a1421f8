"""Polls Redis for the due times of all idle lanes in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.errors import ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import ShardRef

from ..context import WorkerContext
from .lane_state import LaneState


class DuePoller:
    """Called by a lane whose poll is due, or which has new shards: one round trip serves the node."""

    def __init__(self, ctx: WorkerContext, lanes: Sequence[LaneState]) -> None:
        self._store = ctx.store
        self._clock = ctx.clock
        self._outage = ctx.outage
        self._lanes = lanes

    def poll(self, asking: LaneState, everything: bool) -> None:
        """Update the due times of all shards, or of the new ones, in idle lanes and the one ``asking``."""
        asked = [(lane, lane.begin_poll(everything, asking is lane)) for lane in self._lanes]
        queries = [query for _, several in asked for query in several]
        if not queries:
            return
        shards = [query.shard for query in queries]
        open_claims = [query.open_claims for query in queries]
        try:
            dues, seconds = self._outage.retry(lambda: self._timed(shards, open_claims), asking.gives_up)
        except StoreUnavailable:
            return
        except StoreError as error:
            # The text of a damage needs no traceback.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error("%s tries its shards one by one: %s", asking.name, error, exc_info=cause)
            for lane, _ in asked:
                lane.try_all()
            return
        answers = zip(queries, dues, strict=True)
        for lane, several in asked:
            lane.end_poll(list(islice(answers, len(several))), seconds)

    def _timed(
        self, shards: Sequence[ShardRef], open_claims: Sequence[OpenClaims]
    ) -> tuple[list[Due], float]:
        asked_at = self._clock.monotonic()
        dues = self._store.next_due(shards, open_claims)
        return dues, self._clock.monotonic() - asked_at
