"""Aborted migrations: scenarios that random runs rarely find, each with the fault that it finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.store import resharding as moving_shards
from celery_lowkiq.store.resharding import Migrations, Mover
from tests.bound import Queries
from tests.chaos.mutants import script
from tests.simulation.test_resharding import seeded
from tests.store import resharding as words

ONE, NAME = words.ONE, words.NAME
TWO = replace(ONE, shards=2)
#: The queue in its migration, and while that is taken back.
THERE, BACK = words.in_migration(ONE, 2), words.in_migration(TWO, 1)


def a_migration(store, *jobs, queue=ONE):
    """Move from one shard to two: an id that belongs to the second one, with these jobs, and the mover."""
    job_id = words.someone(2, home=1)
    other = Call(words.someone(2, home=0), b"other", perform_in=9e9)
    store.push(queue, [other, *(Call(job_id, *job) for job in jobs)])
    return job_id, words.begun(store, queue, 2)


def to(store, mover, phase):
    words.until(store.client.servers.redis, mover, phase)


def aborted(store, mover, phase="move"):
    """Abort, and go on to a phase."""
    assert Migrations(store.client, NAME).abort() == 1
    to(store, mover, phase)


def texts(store, index, queue=ONE):
    """Texts of the payloads that a claim takes in a shard, of all ids."""
    claim = words.claimed(store, queue, words.owned(store, queue, index))
    return [payload.data for job in claim.jobs for payload in job.payloads]


def the_job(store, job_id, queue=ONE):
    """Texts, due time, number of the retry, and priority of the job at rest."""
    job = Queries(store.client).job(queue, job_id).waiting
    return [payload.data for payload in job.payloads], job.perform_in, job.retry_count, job.priority


def calls_came_after_a_job_that_has_failed(store):
    """In both shards: the job keeps its time and its retries."""
    job_id, mover = a_migration(store, (b"1", None, 1.0))
    words.fails(store, ONE, words.owned(store, ONE, 0))
    due_at = the_job(store, job_id)[1]
    to(store, mover, "move")
    words.pushed(store, THERE, job_id, b"2", perform_in=2.0)
    aborted(store, mover)
    words.pushed(store, BACK, job_id, b"3", perform_in=3.0)
    assert (texts(store, 0, BACK), texts(store, 1, BACK)) == ([], [])
    to(store, mover, "idle")
    assert the_job(store, job_id) == ([b"1", b"2", b"3"], due_at, 3, 0)


def a_call_came_before_a_job_that_has_failed(store):
    """It failed in the added shard, and comes back."""
    job_id, mover = a_migration(store)
    to(store, mover, "move")
    words.pushed(store, THERE, job_id, b"1", perform_in=1.0)
    while not store.client.servers.redis.zcard(words.key("due", 1)):
        mover.turn()
    words.fails(store, THERE, words.owned(store, THERE, 1))
    aborted(store, mover)
    words.pushed(store, BACK, job_id, b"2", perform_in=3.0)
    to(store, mover, "idle")
    found, due_at, retry_count, _ = the_job(store, job_id)
    assert (found, due_at > 3.0, retry_count) == ([b"1", b"2"], True, 3)


def _runs(store):
    """A job that runs since before the migration, and a call for its id that came then."""
    job_id, mover = a_migration(store, (b"1", None, 1.0))
    lease = words.owned(store, ONE, 0)
    claim = words.claimed(store, ONE, lease)
    to(store, mover, "move")
    words.pushed(store, THERE, job_id, b"2", perform_in=2.0)
    return job_id, mover, lease, claim


def a_call_came_in_a_run(store):
    """It waits for the one that came before it, also when the run has ended."""
    job_id, mover, lease, claim = _runs(store)
    aborted(store, mover)
    words.pushed(store, BACK, job_id, b"3", perform_in=1.0)
    words.ended(store, BACK, lease, claim)
    assert texts(store, 0, BACK) == []
    to(store, mover, "idle")
    assert texts(store, 0) == [b"2", b"3"]


def a_call_came_after_a_run(store):
    """The job that the run has left waits for a call that came before this one."""
    job_id, mover, lease, claim = _runs(store)
    aborted(store, mover)
    words.ended(store, BACK, lease, claim, Disposition.RETRY, retry_count=0, delay=0.0, error=b"boom")
    words.pushed(store, BACK, job_id, b"3", perform_in=1.0)
    assert texts(store, 0, BACK) == []
    to(store, mover, "idle")
    assert the_job(store, job_id)[0] == [b"1", b"2", b"3"]


def a_call_came_before_a_run_failed(store):
    """What comes back is newer than the job that the run has left."""
    job_id, mover, lease, claim = _runs(store)
    aborted(store, mover)
    words.pushed(store, BACK, job_id, b"3", perform_in=1.0)
    words.ended(store, BACK, lease, claim, Disposition.RETRY, retry_count=0, delay=1e6, error=b"boom")
    to(store, mover, "idle")
    found, due_at, retry_count, _ = the_job(store, job_id)
    assert (found, due_at > 3.0, retry_count) == ([b"1", b"2", b"3"], True, 0)


def _on_its_way(store):
    """A job that has left its shard, and has not come to the other one."""
    job_id, mover = a_migration(store, (b"1", None, 1.0))
    to(store, mover, "move")
    limits = {"limit": 1000, "max_bytes": 10**6, "counts": 0, "number": 0, "silent": ""}
    found = words.run(store, "export", 0, [job_id.encode()], gen=1, shard=1, **limits)
    return job_id, mover, found


def a_job_was_on_its_way(store):
    """No claim takes it where it went."""
    _, mover, _ = _on_its_way(store)
    aborted(store, mover)
    assert texts(store, 1, BACK) == []
    to(store, mover, "idle")
    assert texts(store, 0) == [b"1"]


def calls_came_after_a_job_that_was_on_its_way(store):
    job_id, mover, _ = _on_its_way(store)
    aborted(store, mover)
    words.pushed(store, BACK, job_id, b"2", perform_in=1.0)
    while not (found := texts(store, 0, BACK)):
        mover.turn()
    assert found == [b"1", b"2"]


def a_job_was_received_and_not_forgotten(store):
    _, mover, (number, data, *_) = _on_its_way(store)
    args = {"merge": "min", "policy": "", "channel": "c", "index": 1}
    assert words.run(store, "import_jobs", 1, gen=1, shard=0, number=number, data=data, **args) == 1
    aborted(store, mover, "idle")
    assert texts(store, 0) == [b"1"]


def a_part_has_left(store):
    """Its last payloads come back behind those that have stayed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving_shards, "TRANSFER_PAYLOADS", 3)
        job_id = words.someone(2, home=1)
        sent = [b"%d" % n + b"x" * 400 for n in range(5)]
        store.push(ONE, [Call(job_id, data, 1.0 + n, perform_in=1.0) for n, data in enumerate(sent)])
        mover = words.begun(store, ONE, 2)
        to(store, mover, "move")
        while not store.client.servers.redis.hlen(words.key("jobs", 1)):
            mover.turn()
        assert store.client.servers.redis.hlen(words.key("jobs", 0)) == 1
        words.pushed(store, THERE, job_id, b"5", perform_in=1.0)
        aborted(store, mover)
        while words.phase(store.client.servers.redis) == "move":
            assert texts(store, 1, BACK) == []
            assert texts(store, 0, BACK) in ([], [*sent, b"5"])
            mover.turn()


def parts_come_back_to_a_job_that_a_run_has_left(store):
    """No claim takes it before the last one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving_shards, "TRANSFER_PAYLOADS", 3)
        job_id, mover, lease, claim = _runs(store)
        sent = [b"%d" % n + b"x" * 400 for n in range(3, 8)]
        words.pushed(store, THERE, job_id, *sent, perform_in=1.0)
        aborted(store, mover)
        words.ended(store, BACK, lease, claim, Disposition.RETRY, retry_count=0, delay=0.0, error=b"boom")
        while not store.client.servers.redis.zcard(words.key("spill_order")):
            mover.turn()
        assert texts(store, 0, BACK) == []
        to(store, mover, "idle")
        assert the_job(store, job_id)[0] == [b"1", b"2", *sent]


def a_pause_while_it_is_taken_back(store):
    """A call does not run before the job that it came after."""
    job_id, mover = a_migration(store, (b"1", None, 1.0))
    to(store, mover, "move")
    words.pushed(store, THERE, job_id, b"2", perform_in=1.0)
    aborted(store, mover)
    Migrations(store.client, NAME).pause(True)
    words.run(store, "stay", 1, [job_id.encode()], gen=2, channel="c", index=1)
    assert texts(store, 1, BACK) == []
    while not (found := texts(store, 0, BACK)):
        mover.turn()
    assert found == [b"1", b"2"]


def a_late_fence_and_a_late_opening(store):
    """Of the migration that was aborted: they change nothing."""
    job_id, mover = a_migration(store, (b"1", None, 1.0))
    mover.turn()
    assert Migrations(store.client, NAME).abort() == 1
    to(store, mover, "move")
    words.run(store, "fence", 0, gen=1, route="1>2")
    words.run(store, "open", 1, shards="1>2", gen=1, score=0, last_call=0, pause=0, since="")
    assert words.pushed(store, BACK, job_id, b"2", perform_in=1.0) == 1
    to(store, mover, "idle")
    assert texts(store, 0) == [b"1", b"2"]


def _delivers_nothing(self, migration):
    return True
    yield


IS_OLDER = "local is_older = not own or redis.call('ZSCORE', arrived, id)"
MARK = "      redis.call('ZADD', arrived, 0, id)\n"
SCENARIOS = {
    calls_came_after_a_job_that_has_failed: script("import_jobs.lua", IS_OLDER, "local is_older = true"),
    a_call_came_before_a_job_that_has_failed: script("push.lua", MARK, ""),
    a_call_came_in_a_run: script("push.lua", "not waits and (ran or ", "not waits and (false or "),
    a_call_came_after_a_run: script("push.lua", "if ran and waits then", "if false then"),
    a_call_came_before_a_run_failed: script("lib/processing.lua", "redis.call('ZREM', arrived, id)", ""),
    a_job_was_on_its_way: script("import_jobs.lua", "while hold_some() do", "while false do"),
    calls_came_after_a_job_that_was_on_its_way: (Mover, "_deliver", _delivers_nothing),
    a_job_was_received_and_not_forgotten: script("forget_transfer.lua", "has_joined(gen)", "is_open(gen)"),
    parts_come_back_to_a_job_that_a_run_has_left: script("import_jobs.lua", "      hold(id)\n", ""),
    a_pause_while_it_is_taken_back: script("stay.lua", " or redis.call('ZSCORE', arrived, id)", ""),
    a_late_fence_and_a_late_opening: script("fence.lua", "tonumber(stored[2] or 0) < tonumber(gen)", "true"),
}


@pytest.mark.parametrize("scenario", [*SCENARIOS, a_part_has_left])
def test_an_aborted_migration(store, scenario):
    scenario(store)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_seeded_fault_is_found(store, scenario):
    with seeded(SCENARIOS[scenario]), pytest.raises(AssertionError):
        scenario(store)
