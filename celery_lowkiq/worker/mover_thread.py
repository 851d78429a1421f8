"""The thread of a node that moves queues to other numbers of shards; all nodes of a queue move it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from celery_lowkiq.rules.basics import try_start
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import LowkiqError, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.outage import backoff
from celery_lowkiq.worker.ports import Mover

#: Seconds between two looks at what cannot move yet: jobs in processing, mostly. They grow slowly to
#: MAX_LOOK: a migration may be paused for days.
LOOK = 0.05
MAX_LOOK = 0.5
#: Seconds before a queue is tried again that is damaged, or stored in another format.
REFUSED_RETRY = 1.0


class MoverThread:
    """Moves queues while their migrations go on. The thread exists only as long."""

    def __init__(self, ctx: WorkerContext) -> None:
        self._ctx = ctx
        self._queues: Sequence[QueueSpec] = ()
        self._nodes = 1
        self._stop = threading.Event()
        self._look = LOOK
        self._thread: threading.Thread | None = None
        #: By queue, its last error, and when it is tried again (monotonic). Used by the thread.
        self._refused: dict[str, tuple[str, float]] = {}

    def move(self, queues: Sequence[QueueSpec], nodes: int) -> None:
        """Move these queues from now on, and no others, beside other nodes. Called by one thread."""
        self._queues, self._nodes = queues, nodes
        if queues and (self._thread is None or not self._thread.is_alive()):
            self._thread = self._ctx.thread("lowkiq-mover", self._main)
            if error := try_start(self._thread):
                # The next turn of ownership tries again.
                logger.error("queues do not move yet: %s", error)

    def stop(self) -> None:
        """End after the turn that is being done."""
        self._stop.set()

    def _main(self) -> None:
        movers: dict[str, Mover] = {}
        pauses = backoff()
        while (queues := self._queues) and not self._stop.is_set():
            try:
                self._ctx.outage.request_started()
                pause = self._turn(movers, queues)
                self._ctx.outage.recovered()
                pauses = backoff()
            except StoreUnavailable as error:
                self._ctx.outage.failed(error)
                pause = next(pauses)
            self._stop.wait(pause)
        # The outage goes on only for threads that will send other requests.
        self._ctx.outage.recovered()

    def _turn(self, movers: dict[str, Mover], queues: Sequence[QueueSpec]) -> float:
        """Do a turn of each queue; return how many seconds to wait then: Redis has other work, too."""
        moved, pause, outage = False, 0.0, None
        began_at = self._ctx.clock.monotonic()
        for queue in queues:
            known, retry_at = self._refused.get(queue.name, ("", began_at))
            if began_at < retry_at:
                continue
            mover = movers[queue.name] = movers.get(queue.name) or self._ctx.store.mover(queue)
            try:
                moved = mover.turn() or moved
                pause += mover.pause(self._nodes)
                self._refused.pop(queue.name, None)
            except StoreUnavailable as error:
                # On a cluster, others may be on masters that answer.
                outage = error
            except LowkiqError as error:
                if str(error) != known:
                    logger.error("queue %s does not move: %s", queue.name, error)
                self._refused[queue.name] = (str(error), began_at + REFUSED_RETRY)
        if outage is not None:
            raise outage
        if moved:
            self._look = LOOK
            return pause
        self._look = min(1.02 * self._look, MAX_LOOK)
        return max(self._look, pause)
