"""News of tracked calls, twice, late and out of order: the counts are those of a plain-Python model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_lowkiq.rules.tracking import NewCall, State, began, ended, ended_without_run
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.trackers import TrackerStore

CALLS = st.sampled_from("abcd")
PENDING = (State.ENQUEUED, State.WORKING)
#: A shard that changes hands, and a Redis that gives claims again.
EPOCHS, CLAIMS = st.integers(1, 4), st.integers(1, 4)


class TracksMachine(RuleBasedStateMachine):
    """The tracker beside a dict of states and the last run of each call."""

    server = None

    @initialize()
    def start(self):
        self.client = connect({"path": self.server.socket_path}, pool_size=4, pool_timeout=5)
        self.client.flushall()
        self.tracker_store = TrackerStore(RedisStore(self.client).client)
        self.tracker = self.tracker_store.open("model", 60)
        self.states, self.runs = {}, {}
        self.closed = self.cancelled = False

    def teardown(self):
        if hasattr(self, "client"):
            self.client.connection_pool.disconnect()

    @rule(names=st.lists(CALLS, max_size=6))
    def add(self, names):
        may_run = self.tracker_store.add(self.tracker, [NewCall(name, "q", name, b"") for name in names])
        assert may_run is not self.cancelled or not names
        for name in names:
            if self.states.get(name) not in PENDING:
                self.states[name] = State.FAILED if self.cancelled else State.ENQUEUED
                self.runs.setdefault(name, (0, 0, 0))

    @rule(name=CALLS, epoch=EPOCHS, claim=CLAIMS, times=st.integers(1, 2))
    def begin(self, name, epoch, claim, times):
        for _ in range(times):
            shall_not = self.tracker_store.update([began(self.tracker, name, epoch, claim)])
            assert bool(shall_not) is self.cancelled
        if (epoch, claim, 0) <= self.runs.get(name, (9,)):
            return
        if not self.cancelled:
            self.states[name], self.runs[name] = State.WORKING, (epoch, claim, 0)
        elif self.states[name] in PENDING:
            self.states[name] = State.FAILED

    @rule(
        name=CALLS,
        epoch=EPOCHS,
        claim=CLAIMS,
        over=st.booleans(),
        success=st.booleans(),
        times=st.integers(1, 2),
    )
    def end(self, name, epoch, claim, over, success, times):
        news = ended(began(self.tracker, name, epoch, claim), over, success, text="said")
        for _ in range(times):
            self.tracker_store.update([news])
        if (epoch, claim, 1) > self.runs.get(name, (9,)):
            self.states[name], self.runs[name] = news.state, (epoch, claim, 1)

    @rule(names=st.sets(CALLS))
    def drop(self, names):
        self.tracker_store.update(
            ended_without_run(self.tracker, name, State.FAILED, "deleted") for name in names
        )
        for name in names:
            if self.states.get(name) in PENDING:
                self.states[name] = State.FAILED

    @rule(name=CALLS, epoch=EPOCHS, claim=CLAIMS)
    def progress(self, name, epoch, claim):
        self.tracker_store.progress([began(self.tracker, name, epoch, claim)], "said", epoch, claim)

    @rule()
    def close(self):
        self.tracker_store.close(self.tracker)
        self.closed = True

    @precondition(lambda self: len(self.states) > 2)
    @rule()
    def cancel(self):
        while self.tracker_store.cancel(self.tracker):
            pass
        self.closed = self.cancelled = True
        for name, state in self.states.items():
            if state is State.ENQUEUED:
                self.states[name] = State.FAILED

    @invariant()
    def the_counts_are_those_of_the_states(self):
        if not hasattr(self, "states"):
            return
        view = self.tracker_store.view(self.tracker)
        states = list(self.states.values())
        for state in State:
            assert getattr(view.counts, state.value) == states.count(state), state
        assert (view.closed, view.cancelled) == (self.closed, self.cancelled)

    @invariant()
    def a_page_shows_each_call_in_its_state(self):
        if hasattr(self, "states"):
            found = self.tracker_store.calls(self.tracker, State, 10, None).items
            assert {view.task_id: view.state for view in found} == self.states
            assert len(found) == len(self.states)


@pytest.mark.random
def test_counts_follow_the_news(redis_server, rounds):
    machine = type("Machine", (TracksMachine,), {"server": redis_server})
    for count in rounds(100):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=30))
