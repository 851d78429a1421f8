"""The same machine for tasks with policies: calls that meet often, some of them with records."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.models import Call, Disposition, Merge, RemovalReason
from celery_lowkiq.rules.policies import AfterFailure, Policies, WhenFull
from tests.conftest import Rounds
from tests.model.machine import BAD, MAX_WAITS, PRIORITIES, UNREAD, StoreMachine

#: Calls that meet often: few ids, payloads and scores.
CALLS = st.builds(
    Call,
    st.sampled_from(["a", "b", "d e"]),
    st.sampled_from([b"1", b"2", b"3", b"x" * 400, b"y" * 700]),
    st.sampled_from([1.0, 2.0, 2.0, 3.0]),
    st.sampled_from([0.0, 1.0, 1.0, 9e9]),
    record=st.sampled_from([None, None, b"a call"]),
    priority=PRIORITIES,
    **UNREAD,
)
#: Outcomes of a run that gets no payload, or leaves none.
ALL_BAD = st.sampled_from([dict.fromkeys(range(20), reason) for reason in (b"bad", *RemovalReason)])
#: Calls before and during a run, what becomes of it, after which delay, and of single payloads.
STEPS = st.tuples(
    st.lists(CALLS, max_size=3),
    st.lists(CALLS, max_size=2),
    st.sampled_from([Disposition.DONE, Disposition.RETRY, *Disposition]),
    st.sampled_from([0.0, 1e6]),
    BAD | st.just({}) | ALL_BAD,
)
POLICIES = st.builds(
    Policies,
    keep=st.sampled_from([None, 1, 2]),
    debounce=st.sampled_from([None, None, None, 1e-6, 1e5]),
    debounce_max=st.sampled_from([None, 1e5]),
    drop_stale=st.sampled_from([None, 1e6]),
    when_pushed_after_failure=st.sampled_from(AfterFailure),
    max_length=st.sampled_from([None, None, 1, 2]),
    when_full=st.sampled_from(WhenFull),
    priority=st.sampled_from([0, 0, 4]),
    retry_priority=st.sampled_from([None, 2, 9]),
    priority_max_wait=MAX_WAITS,
    #: One run in eleven days, or as many as there are.
    rate_per_id=st.sampled_from([None, 1e-6, 1e7]),
    per_run=st.sampled_from([None, None, 1, 2]),
    anew_on_push=st.booleans(),
    hold=st.sampled_from([None, None, 1, 3, 10_000]),
)


class PolicyMachine(StoreMachine):
    """Calls of a task with policies, some of them with records. No id is condemned here, and nothing is
    loaded, because records would become more and more.
    """

    max_crashes = 10**6
    load_what_is_there = pause = resume = None  # type: ignore[assignment]
    a_former_owner_is_refused = an_acquire_is_repeated = an_old_claim_arrives_again = None  # type: ignore[assignment]

    @initialize(
        merge=st.sampled_from(list(Merge)),
        ranked=st.booleans(),
        jobs=st.lists(CALLS, min_size=1, max_size=4),
        policies=POLICIES,
    )
    def begin(self, merge: Merge, ranked: bool, jobs: list[Call], policies: Policies) -> None:
        super().begin(merge, ranked, jobs, policies)

    @rule(jobs=st.lists(CALLS, min_size=1, max_size=4), repeats=st.integers(1, 2))
    def push(self, jobs: list[Call], repeats: int) -> None:
        # What gives way depends on what has spilled, which a model without packing cannot know.
        small = self.queue.policies.when_full is WhenFull.DROP_OLDEST
        jobs = [job._replace(data=job.data[:2]) for job in jobs] if small else jobs
        if small:
            # Signatures let jobs of many small payloads spill, too.
            self.model.signer = None
        super().push(jobs, repeats)

    @rule(count=st.integers(15, 30), size=st.sampled_from([2, 100]), jobs=st.lists(CALLS, max_size=3))
    def many_recorded_calls(self, count: int, size: int, jobs: list[Call]) -> None:
        """More than a script looks at in passing; the others have higher scores."""
        payloads = [chr(ord("A") + n).encode() * size for n in range(count)]
        low = [Call("a", payload, float(n - 99), 1.0, record=b"a call") for n, payload in enumerate(payloads)]
        self.push(low, 1)
        self.push([*jobs, Call("a", b"1", 4.0, 1.0), Call("a", b"2", 5.0, 1.0)], 1)

    @rule(steps=st.lists(STEPS, min_size=2, max_size=8))
    def many_runs(self, steps: list[tuple]) -> None:
        """Calls before and during runs, one after the other: most policies are about what was before."""
        for before, during, disposition, delay, bad in steps:
            if before:
                self.push(before, 1)
            self.claim(4, 1)
            if during:
                self.push(during, 1)
            for job_id in self.model.in_claim_order():
                claim = self.model.processing[job_id].claim
                self._settle(job_id, claim, disposition, 0, delay, bad, 1)
                self.the_store_is_as_the_model_says()


def test_a_suspect_that_gave_way_is_one_when_its_payload_comes_again(redis_server: EmbeddedServer) -> None:
    """Callers may not change its mark, and a deletion finds no job."""
    machine = type("Machine", (PolicyMachine,), {"server": redis_server})()
    policies = Policies(max_length=3, when_full=WhenFull.DROP_OLDEST)
    call = Call("a", b"1", 1.0, 1.0)
    machine.begin(Merge.MIN, False, [call], policies)
    machine.claim(1, 1)
    machine.another_owner_takes_over(stopping=False)
    machine.push([Call(job_id, b"1", 1.0, 9e9) for job_id in "bcd"], 1)
    assert "a" not in machine.model.waiting
    machine.delete(["a"])
    machine.push([call], 1)
    machine.run_now_all()
    machine.claim(4, 1)
    assert machine.model.processing.keys() == {"a"}
    machine.the_store_is_as_the_model_says()
    machine.teardown()


@pytest.mark.random
def test_the_store_follows_the_model_with_policies(redis_server: EmbeddedServer, rounds: Rounds) -> None:
    machine = type("Machine", (PolicyMachine,), {"server": redis_server})
    for count in rounds(150):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=50))


@pytest.mark.random
def test_policies_on_redis_62(redis_62_server: EmbeddedServer, rounds: Rounds) -> None:
    machine = type("Machine62", (PolicyMachine,), {"server": redis_62_server})
    for count in rounds(30):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=50))
