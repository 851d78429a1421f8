"""Failovers that lose claims and settles of jobs, while their queue moves to another number of shards.

Each test has a fault of the code, with which it fails.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from unittest import mock

import pytest
from redis import exceptions

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.rules.resharding import UnresponsiveOwners, is_finished
from celery_lowkiq.store import resharding as movers
from celery_lowkiq.store.resharding import Mover
from tests.chaos.mutants import script
from tests.simulation.test_resharding import seeded, without
from tests.store import resharding as words

TWO = QueueSpec(words.NAME, shards=2, batch_size=100)
FOUR = words.in_migration(TWO, 4)
#: Turns in which a mover does all that it can do.
TURNS = 40


class Moving:
    """An id with a job in shard 0, which it leaves for shard 2 when the queue moves from 2 to 4 shards."""

    def __init__(self, store, monkeypatch):
        self.store, self.redis = store, store.client.servers.redis
        self.id = words.someone(4, home=2)
        #: Shards whose replicas lag: they confirm nothing.
        self.lagging = set()
        self._monkeypatch = monkeypatch
        self.mover = None
        store.push(TWO, [Call(self.id, b"1", perform_in=1.0)])
        # The migration goes on as long as this one runs.
        store.push(TWO, [Call(words.someone(4, home=3), b"", perform_in=1.0)])
        self._running = words.owned(store, TWO, 1)
        self._run = words.claimed(store, TWO, self._running)

    def begin(self):
        self.mover = words.begun(self.store, TWO, 4)
        self._monkeypatch.setattr(self.mover, "_confirm", self._confirm)
        words.until(self.redis, self.mover, "move")

    def _confirm(self, shards, servers):
        if self.lagging.intersection(shards):
            raise StoreUnavailable("not confirmed")

    def on_clock(self):
        """Another mover, with a clock of its own."""
        clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
        self.mover = Mover(self.store.client, TWO, clock=clock, lease_seconds=10.0)
        return clock

    @contextmanager
    def away(self, *shards):
        """Redis does not answer, or on a cluster, the masters of some shards."""
        client, keys = self.store.client, [words.key("meta", index) for index in shards]

        def answer(commands, send=client.servers.send):
            if not shards:
                raise StoreUnavailable("away")
            lost = [any(key in command for key in keys) for command in commands]
            return [
                exceptions.ConnectionError() if gone else send([command])[0]
                for gone, command in zip(lost, commands, strict=True)
            ]

        goes_on = mock.patch.object(client, "check_reachable")
        with goes_on, mock.patch.object(client.servers, "send", answer):
            yield

    def turns(self):
        for _ in range(TURNS):
            with suppress(StoreUnavailable):
                self.mover.turn()

    def before_the_last_phase(self, act):
        finish, acts = self.mover._finish, [act]

        def finish_after(migration):
            while acts:
                acts.pop()()
            return finish(migration)

        self._monkeypatch.setattr(self.mover, "_finish", finish_after)

    def let_end(self):
        words.ended(self.store, TWO, self._running, self._run)

    def end(self):
        """End the migration; return the id's payloads in its new shard."""
        home = words.owned(self.store, FOUR, 2)
        words.until(self.redis, self.mover, "idle")
        return self.payloads(home)

    def call_again(self):
        assert words.pushed(self.store, FOUR, self.id, b"2", perform_in=1.0) == 1

    def claim(self, lease):
        """The payloads of the id that an owner gets which has settled all that it knows of."""
        claim = self.store.claim(FOUR, lease, next(words._requests), OpenClaims())
        return claim, {job.id: [payload.data for payload in job.payloads] for job in claim.jobs}

    def payloads(self, lease):
        return self.claim(lease)[1].get(self.id, [])


@pytest.fixture
def moving(store, monkeypatch):
    return Moving(store, monkeypatch)


def a_call_waits_until_a_replica_knows_the_end_of_the_run_before(moving):
    """A failover that lost the end would have it run again beside the call."""
    source = words.owned(moving.store, TWO, 0)
    claim = words.claimed(moving.store, TWO, source)
    moving.begin()
    moving.call_again()
    moving.turns()
    moving.lagging.add(0)
    words.ended(moving.store, TWO, source, claim)
    moving.turns()
    home = words.owned(moving.store, FOUR, 2)
    assert moving.payloads(home) == []
    moving.lagging.clear()
    moving.turns()
    assert moving.payloads(home) == [b"2"]


def a_run_whose_end_was_lost_comes_back_to_a_mover(moving):
    """No replica was asked, and the next call runs where the id went."""
    source = words.owned(moving.store, TWO, 0)
    claim = words.claimed(moving.store, TWO, source)
    moving.begin()
    moving.call_again()
    moving.turns()
    before = words.copies(moving.redis, 0)
    words.ended(moving.store, TWO, source, claim)
    moving.turns()
    home = words.owned(moving.store, FOUR, 2)
    later, found = moving.claim(home)
    assert found == {moving.id: [b"2"]}
    words.take_back(moving.redis, 0, before)
    assert moving.payloads(source) == []
    moving.turns()
    words.ended(moving.store, FOUR, home, later)
    assert moving.store.release(source)
    moving.let_end()
    assert moving.end() == [b"1"]


def a_run_whose_end_was_lost_comes_back_to_a_mover_from_its_next_owner(moving):
    """As before, and the owner has died since."""
    source = words.owned(moving.store, TWO, 0)
    words.claimed(moving.store, TWO, source)
    moving.begin()
    moving.call_again()
    moving.turns()
    words.take_back(moving.redis, 0, words.copies(moving.redis, 0))
    assert moving.payloads(words.owned(moving.store, FOUR, 0)) == []
    moving.let_end()
    assert moving.end() == [b"1", b"2"]


def a_run_whose_claim_was_lost_is_not_moved(moving):
    """Its shard has the job once more, and its owner knows of no loss."""
    source = words.owned(moving.store, TWO, 0)
    before = words.copies(moving.redis, 0)
    claim = words.claimed(moving.store, TWO, source)
    words.take_back(moving.redis, 0, before)
    moving.begin()
    moving.turns()
    home = words.owned(moving.store, FOUR, 2)
    assert moving.payloads(home) == []
    words.ended(moving.store, TWO, source, claim)
    moving.turns()
    assert moving.payloads(home) == []
    assert moving.store.release(source)
    moving.turns()
    assert moving.payloads(home) == [b"1"]


def a_run_of_which_nothing_is_known_is_waited_for(moving):
    """Its call was lost, too. Calls of the id that come later wait for the run."""
    source = words.owned(moving.store, TWO, 0)
    claim = words.claimed(moving.store, TWO, source)
    before = words.copies(moving.redis, 0)
    lost = [name for name in before if name.endswith((b"claimed", b"processing"))]
    words.take_back(moving.redis, 0, {name: data for name, data in before.items() if name not in lost})
    moving.begin()
    moving.turns()
    moving.call_again()
    moving.let_end()
    moving.turns()
    assert words.phase(moving.redis) == "move"
    assert moving.payloads(words.owned(moving.store, FOUR, 2)) == []
    words.ended(moving.store, TWO, source, claim)
    assert moving.store.release(source)
    assert moving.end() == [b"2"]


def an_owner_that_is_silent_is_not_waited_for(moving):
    """Only a command moves the queue: all its workers have died, and the server was replaced."""
    words.owned(moving.store, TWO, 0)
    words.take_back(moving.redis, 0, words.copies(moving.redis, 0))
    moving.begin()
    clock = moving.on_clock()
    home = words.owned(moving.store, FOUR, 2)
    it_stays(moving, clock, home, 0.0, 10.4)
    moving.redis.hincrby(words.key("lease", 0), "counter", 1)
    it_stays(moving, clock, home, 10.6, 21.0)
    clock.now = 21.2
    moving.turns()
    assert moving.payloads(home) == [b"1"]
    moving.let_end()
    moving.end()


def it_stays(moving, clock, home, *times):
    for now in times:
        clock.now = now
        moving.turns()
        assert moving.payloads(home) == []


def an_outage_is_no_silence(moving, *shards):
    """The owner could not renew, and runs what nothing is known of."""
    source = words.owned(moving.store, TWO, 0)
    before = words.copies(moving.redis, 0)
    claim = words.claimed(moving.store, TWO, source)
    words.take_back(moving.redis, 0, before)
    moving.begin()
    clock = moving.on_clock()
    moving.turns()
    with moving.away(*shards):
        clock.now = 12.0
        moving.turns()
    moving.turns()
    home = words.owned(moving.store, FOUR, 2)
    assert moving.payloads(home) == []
    clock.now = 22.6
    moving.turns()
    assert moving.payloads(home) == [b"1"]
    words.ended(moving.store, TWO, source, claim)


def an_outage_of_its_master_is_no_silence(moving):
    an_outage_is_no_silence(moving, 0)


def a_run_of_an_unknown_owner_is_waited_for(moving):
    """The failover has lost that it acquired the shard, which another one had released."""
    assert moving.store.release(words.owned(moving.store, TWO, 0))
    before = words.copies(moving.redis, 0)
    words.claimed(moving.store, TWO, words.owned(moving.store, TWO, 0))
    words.take_back(moving.redis, 0, before)
    it_waits_for_the_next_owner(moving)


def a_run_under_a_lost_lease_is_waited_for(moving):
    """The failover has lost its claim, and the lease."""
    source = words.owned(moving.store, TWO, 0)
    words.ended(moving.store, TWO, source, words.claimed(moving.store, TWO, source))
    assert words.pushed(moving.store, TWO, moving.id, b"1", perform_in=1.0) == 1
    before = words.copies(moving.redis, 0)
    words.claimed(moving.store, TWO, source)
    del before[words.key("lease", 0).encode()]
    words.take_back(moving.redis, 0, before)
    it_waits_for_the_next_owner(moving)


def a_run_that_its_owner_has_left_is_waited_for(moving):
    """Its process is about to end, and the run with it."""
    source = words.owned(moving.store, TWO, 0)
    before = words.copies(moving.redis, 0)
    words.claimed(moving.store, TWO, source)
    words.take_back(moving.redis, 0, before)
    assert moving.store.release(source, unsettled=True)
    it_waits_for_the_next_owner(moving)


def it_waits_for_the_next_owner(moving):
    moving.begin()
    clock, home = moving.on_clock(), words.owned(moving.store, FOUR, 2)
    it_stays(moving, clock, home, 0.0, 10.4)
    clock.now = 10.6
    moving.turns()
    assert moving.payloads(home) == [b"1"]


def what_a_failover_brings_back_before_the_last_phase_moves_again(moving):
    """All sources were empty when they were read."""
    source = words.owned(moving.store, TWO, 0)
    claim = words.claimed(moving.store, TWO, source)
    moving.begin()
    moving.turns()
    before = words.copies(moving.redis, 0)
    moving.before_the_last_phase(lambda: words.take_back(moving.redis, 0, before))
    words.ended(moving.store, TWO, source, claim)
    moving.let_end()
    moving.turns()
    assert words.phase(moving.redis) == "move"
    assert moving.payloads(source) == []
    moving.turns()
    assert moving.store.release(source)
    assert moving.end() == [b"1"]


def calls_that_wait_do_not_put_the_last_phase_off(moving):
    """More than a turn reads have come to a source, for ids of the other one."""
    three = words.in_migration(TWO, 3)
    moving.mover = words.begun(moving.store, TWO, 3)
    home, former = three.layout.home, three.layout.former_home
    names = (name for name in map("of-{}".format, itertools.count()) if (former(name), home(name)) == (1, 0))
    calls = [Call(job_id, b"", perform_in=1.0) for job_id in itertools.islice(names, 600)]
    moving.before_the_last_phase(lambda: moving.store.push(three, calls))
    moving.let_end()
    for _ in range(TURNS):
        moving.mover.turn()
        if moving.redis.hlen(words.key("jobs", 0)) >= len(calls):
            break
    assert words.phase(moving.redis) == "seal"
    words.until(moving.redis, moving.mover, "idle")


def calls_behind_those_that_wait_for_an_owner_are_not_held_up(moving):
    """More than a turn asks for wait in shard 2 for shard 0. One that waits for shard 1 comes last."""
    words.owned(moving.store, TWO, 0)
    words.take_back(moving.redis, 0, words.copies(moving.redis, 0))
    three = words.in_migration(TWO, 3)
    moving.mover = words.begun(moving.store, TWO, 3)
    words.until(moving.redis, moving.mover, "move")

    def ids(source):
        names = map("of-{}".format, itertools.count())
        homes = three.layout.former_home, three.layout.home
        return (name for name in names if [home(name) for home in homes] == [source, 2])

    wait = [Call(job_id, b"", perform_in=1.0) for job_id in itertools.islice(ids(0), 1200)]
    last = next(ids(1))
    moving.store.push(three, [*wait, Call(last, b"", perform_in=2.0)])
    moving.turns()
    claim = words.claimed(moving.store, three, words.owned(moving.store, three, 2))
    assert [job.id for job in claim.jobs] == [last]


KNOWS_ALL = script("lib/migration.lua", "or found[2] == server and", "or true or")
HIDES = script("lib/processing.lua", "    hold(id)\n", "")
NEVER_DOUBTS = (UnresponsiveOwners, "doubted", lambda *_: None)
#: By test, a fault with which it fails.
FAULTS = {
    calls_that_wait_do_not_put_the_last_phase_off: (
        movers,
        "has_come_back",
        lambda *of_shard: not is_finished(*of_shard),
    ),
    calls_behind_those_that_wait_for_an_owner_are_not_held_up: (movers, "STUCK_IDS", 0),
    a_call_waits_until_a_replica_knows_the_end_of_the_run_before: (
        movers,
        "_has_reported",
        lambda reply: reply and reply[0],
    ),
    a_run_whose_end_was_lost_comes_back_to_a_mover: HIDES,
    a_run_whose_end_was_lost_comes_back_to_a_mover_from_its_next_owner: HIDES,
    a_run_whose_claim_was_lost_is_not_moved: KNOWS_ALL,
    a_run_of_which_nothing_is_known_is_waited_for: script("read_moves.lua", "given_elsewhere(),", "'',"),
    a_run_of_an_unknown_owner_is_waited_for: script(
        "lib/migration.lua", "= had_owner and", "= (found[1] or '') ~= '' and"
    ),
    a_run_under_a_lost_lease_is_waited_for: script(
        "lib/migration.lua", "redis.call('HEXISTS', meta, 'request') == 1", "false"
    ),
    a_run_that_its_owner_has_left_is_waited_for: script("lib/migration.lua", " and found[3] ~= '1'", ""),
    an_outage_is_no_silence: NEVER_DOUBTS,
    an_outage_of_its_master_is_no_silence: NEVER_DOUBTS,
    an_owner_that_is_silent_is_not_waited_for: (UnresponsiveOwners, "unresponsive", lambda *_: ""),
    what_a_failover_brings_back_before_the_last_phase_moves_again: without(
        "_finish",
        "if any(has_come_back(migration, index, found) for index, found in moves.items()):",
        "if False:",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_no_run_is_lost_sight_of(moving, case):
    case(moving)


@pytest.mark.parametrize("case", FAULTS)
def test_its_fault_is_found(moving, case):
    with seeded(FAULTS[case]), pytest.raises(AssertionError):
        case(moving)
