"""O7: what an outage costs where batches are halved: the rules and the model, with a clock of their own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from celery_lowkiq.rules.models import Call, Disposition, Job
from celery_lowkiq.rules.policies import MAX_ISOLATION_DELAY
from celery_lowkiq.rules.retry import RetryPolicy, after_failure, default_delay
from tests.model.model import Model

OUTAGE = 60.0
BATCH = 100
Pause = Callable[[int], float]


class Clocked:
    """One shard and its lane; each run takes ``run`` s, and fails."""

    def __init__(self, pause: Pause, isolate: bool, run: float, apart: float) -> None:
        self.policy = RetryPolicy(None, lambda error, n: pause(n), isolate_failures=isolate)
        self.model = Model("min", 3)
        self.run = run
        self.now = 0.0
        jobs = [Call(f"{n:03d}", b"x", 1.0, n * apart) for n in range(BATCH)]
        self.model.push(jobs, self.now)

    def fail_once(self) -> list[str]:
        """The next batch, when it is due."""
        due = self.model.next_due()
        assert due is not None
        self.now = max(self.now, due)
        ids = self.model.claim(BATCH, self.now)
        began, self.now = self.now, self.now + self.run
        for job_id in ids:
            known = self.model.processing[job_id]
            job = Job(job_id, (), began, known.retry_count, claim=known.claim, isolation=known.isolation)
            settlement = after_failure(job, self.policy, b"away", together=len(ids))
            outcome = (
                settlement.retry_count,
                self.now + settlement.delay,
                self.now,
                b"away",
                {},
                settlement.isolation,
            )
            assert self.model.settle(job_id, known.claim, Disposition.RETRY, *outcome)
        return ids

    def runs(self) -> int:
        """How many begin while the outage lasts."""
        count = 0
        while max(self.now, self.model.next_due() or 0.0) < OUTAGE:
            self.fail_once()
            count += 1
        return count


def of_default(seed: int) -> Pause:
    drawn = random.Random(seed)
    return lambda n: default_delay(n, drawn.randint)


PAUSES: dict[str, Pause] = {
    "default without its random part": lambda n: float(n**4 + 15),
    "half a second": lambda n: 0.5,
    "1 s": lambda n: 1.0,
    "5 s": lambda n: 5.0,
    "15 s": lambda n: 15.0,
    "30 s": lambda n: 30.0,
    "growing": lambda n: n + 1.0,
    "doubling from 1 s": lambda n: 2.0**n,
    "doubling from 0.1 s": lambda n: 0.1 * 2.0**n,
    "exponential": lambda n: 30.0 + n**5,
}


@pytest.mark.parametrize("run, apart", [(0.01, 0.0), (0.5, 0.0), (0.5, 0.005)])
@pytest.mark.parametrize("name", PAUSES)
def test_o7_an_outage_of_a_minute_costs_at_most_twice_the_runs(name, run, apart):
    whole, isolated = (Clocked(PAUSES[name], isolate, run, apart).runs() for isolate in (False, True))
    assert 0 < isolated <= 2 * whole


@pytest.mark.parametrize("seed", range(5))
def test_o7_so_it_is_with_the_default_pauses(seed):
    whole, isolated = (Clocked(of_default(seed), isolate, 0.1, 0.0).runs() for isolate in (False, True))
    assert 0 < isolated <= 2 * whole


def test_o7_batches_are_halved_until_all_run_alone_and_wait_a_minute_longer_at_most():
    shard = Clocked(lambda n: 1.0, True, 0.01, 0.0)
    last: dict[str, int] = {}
    ended: dict[str, float] = {}
    while set(last.values()) != {1}:
        ids = shard.fail_once()
        for job_id in ids:
            assert len(ids) <= max(1, last.get(job_id, 2 * BATCH) // 2)
            # A run of others may be in the way for as long as all of them take.
            assert shard.now - ended.get(job_id, shard.now) <= 1.0 + MAX_ISOLATION_DELAY + BATCH * shard.run
            last[job_id], ended[job_id] = len(ids), shard.now
    assert len(last) == BATCH
