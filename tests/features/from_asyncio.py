"""A task that is called from asyncio, and what the store has of it."""

from __future__ import annotations

import asyncio
import time

from celery import Celery

from celery_lowkiq import ordered_task

TICK = 0.01
#: Seconds below those for which a call waits for a silent Redis, or tries again: the loop would stand still.
SILENCE = 4.0


def make_app(url, **settings):
    app = Celery("from-asyncio", broker="memory://", set_as_current=False)
    app.conf.update({"lowkiq_url": url, "task_ignore_result": True, **settings})
    return app


def add_sync(app, **options):
    @ordered_task(app=app, shared=False, name="sync", **options)
    def sync(payloads_by_id):
        """Never runs."""

    return app.tasks["sync"]


def stored(task):
    """Payloads by id, in order."""
    queue = task.ordered_queue
    return {job.id: [payload.value for payload in job.payloads] for job in queue.jobs(limit=1000).items}


async def ticking(work):
    """The result of ``work``, and how long the event loop stood still at most (s)."""
    gaps = [0.0]

    async def tick():
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            gaps.append(now - last - TICK)
            last = now

    ticker = asyncio.create_task(tick())
    try:
        results = await asyncio.gather(work, return_exceptions=True)
        # Also a loop that stood still until the end has measured its gap then.
        await asyncio.sleep(2 * TICK)
        return results, max(gaps)
    finally:
        ticker.cancel()
