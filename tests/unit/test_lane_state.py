"""What a lane may claim from."""

from __future__ import annotations

from types import SimpleNamespace

from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.worker.lane import LaneState


class Name(str):
    """Counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_queues_that_wait_for_tokens_are_looked_up_and_not_searched():
    """With 1,000 of them, each look of a lane compared a million names."""
    shards = [ShardRef(Name(f"q{n}"), 0) for n in range(300)]
    exhausted = {shard.queue: 1e12 for shard in shards[1:]}
    limiter = SimpleNamespace(exhausted_until=lambda now: exhausted)
    lane = LaneState("lane", SimpleNamespace(clock=SystemClock(), poll_interval=1.0, rate_limiter=limiter))
    for shard in shards:
        lane.serve(SimpleNamespace(shard=shard, may_claim=lambda now: True))
        lane.announce(shard, 0.0)
    Name.compared = 0
    found = lane._claimable()
    assert [shard for shard, when in found.items() if when == 0.0] == shards[:1]
    assert Name.compared < 30 * len(shards)
