"""What people do to a queue, in the real store and in the model."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from celery_lowkiq.rules.dump_format import Header, State
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.policies import NOT_ISOLATED
from celery_lowkiq.store.actions import FAILED
from celery_lowkiq.store.dump_load import dump_entries, load_entries
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Pausing, Queries
from tests.model.model import Model

IDS = st.sampled_from(["a", "b", "{c}:1", "d e", "é😀"])
#: Each load doubles the call records: their calls are stored once more.
MAX_LOADS = 8


class PeopleRules(RuleBasedStateMachine):
    """For a machine that has store and model."""

    store: RedisStore
    queries: Queries
    actions: Actions
    pausing: Pausing
    queue: QueueSpec
    model: Model
    #: How often a dump of the queue was loaded into it.
    loads = 0

    def _due(self, job_id: str) -> float:
        """When a waiting job is due, held or not."""
        raise NotImplementedError

    @rule(job_id=IDS, force=st.booleans())
    def queue_up(self, job_id: str, force: bool) -> None:
        moved = self.actions.requeue(self.queue, [job_id], force=force)
        assert moved == bool(self.model.revivable(job_id, force))
        if moved:
            # Where nothing of it is kept, no time is given.
            self.model.queue_up(job_id, now=self._due(job_id), force=force)

    @rule()
    def bury_failed(self) -> None:
        failed = [job_id for job_id, job in self.model.waiting.items() if job.retry_count >= 0]
        assert self.actions.bury(self.queue, FAILED, b"", only_failed=True) == len(failed)
        for job_id in failed:
            job = self.model.waiting[job_id]
            self.model.take_out(job_id)
            self.model.bury(job_id, job.in_order(), job.error)

    @rule(ids=st.lists(IDS, unique=True, max_size=3))
    def delete(self, ids: list[str]) -> None:
        assert self.actions.delete(self.queue, ids) == len(self.model.waiting.keys() & set(ids))
        for job_id in ids:
            self.model.take_out(job_id)

    @rule(ids=st.lists(IDS, unique=True, max_size=2))
    def delete_dead(self, ids: list[str]) -> None:
        assert self.actions.delete_dead(self.queue, ids) == len(self.model.morgue.keys() & set(ids))
        for job_id in ids:
            self.model.forget_dead(job_id)

    @precondition(lambda self: self.model.policies.drop_stale is None)
    @rule(ids=st.lists(IDS, max_size=3), repeats=st.integers(1, 2))
    def hold(self, ids: list[str], repeats: int) -> None:
        changed = [self.pausing.switch_holds(self.queue, ids, held=True) for _ in range(repeats)]
        found = set(ids) & self.model.morgue.keys()
        assert changed == [len(found - self.model.held), 0][:repeats]
        self.model.held |= found

    @rule(ids=st.lists(IDS, max_size=3), repeats=st.integers(1, 2))
    def go_on(self, ids: list[str], repeats: int) -> None:
        changed = [self.pausing.switch_holds(self.queue, ids, held=False) for _ in range(repeats)]
        assert changed == [len(set(ids) & self.model.held), 0][:repeats]
        self.model.held -= set(ids)

    @rule()
    def run_now_all(self) -> None:
        later = [job_id for job_id, job in self.model.waiting.items() if job.perform_in > 1e9]
        late = [job_id for job_id in later if job_id in self.model.waiting]
        self.actions.run_now_all(self.queue)
        for job_id in late:
            assert self._due(job_id) < 8e9
            self.model.waiting[job_id].perform_in = min(
                self.model.waiting[job_id].perform_in, self._due(job_id)
            )

    @rule(ids=st.lists(IDS, max_size=2), repeats=st.integers(1, 2))
    def pause_ids(self, ids: list[str], repeats: int) -> None:
        changed = [self.pausing.switch_ids(self.queue, ids, paused=True) for _ in range(repeats)]
        assert changed == [len(set(ids) - self.model.paused), 0][:repeats]
        self.model.paused.update(ids)

    @rule(ids=st.lists(IDS, max_size=4), repeats=st.integers(1, 2))
    def resume_ids(self, ids: list[str], repeats: int) -> None:
        changed = [self.pausing.switch_ids(self.queue, ids, paused=False) for _ in range(repeats)]
        assert changed == [len(set(ids) & self.model.paused), 0][:repeats]
        self.model.paused.difference_update(ids)

    @rule(what=st.sampled_from(["queue", "shard"]), repeats=st.integers(1, 2))
    def pause(self, what: str, repeats: int) -> None:
        pause, *shard = (self.pausing.switch_queue,) if what == "queue" else (self.pausing.switch_shard, 0)
        changed = [pause(self.queue, *shard, paused=True) for _ in range(repeats)]
        assert changed == [what not in self.model.pauses, False][:repeats]
        self.model.pauses.add(what)

    @precondition(lambda self: self.model.pauses)
    @rule(repeats=st.integers(1, 2))
    def resume(self, repeats: int) -> None:
        for _ in range(repeats):
            assert self.pausing.switch_queue(self.queue, paused=False) == ("queue" in self.model.pauses)
            self.model.pauses.discard("queue")
            assert bool(self.queries.stats(self.queue).paused) == bool(self.model.pauses)
            assert self.pausing.switch_shard(self.queue, 0, paused=False) == ("shard" in self.model.pauses)
            self.model.pauses.discard("shard")

    @precondition(lambda self: self.loads < MAX_LOADS)
    @rule()
    def load_what_is_there(self) -> None:
        """Payloads that are there with their scores merge away, and times and errors are the same; a dump
        does not tell how a job is isolated.
        """
        self.loads += 1
        entries = dump_entries(self.store, self.queue)
        still = [entry for entry in entries if entry.state is not State.PROCESSING]
        header = Header(uuid.uuid4().hex, "q", 1, "json", 0)
        assert load_entries(self.store, self.queue, header, list(enumerate(still, 1))) == len(still)
        for job_id, job in self.model.waiting.items():
            job.isolation = NOT_ISOLATED
            if job.retry_count >= 0:
                # A due time that has passed becomes that of the load.
                assert self._due(job_id) >= job.perform_in - 1e-5
                job.perform_in = self._due(job_id)
