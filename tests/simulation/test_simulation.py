"""Clusters in virtual time; LOWKIQ_SIMULATIONS is how many, from LOWKIQ_SIMULATION_SEED on."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest

from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.shares import Member
from celery_lowkiq.worker.acquisition import Acquisition
from celery_lowkiq.worker.lease_table import LeaseTable
from tests.marks import first_often, other_each_time
from tests.simulation.checks import HAND_OVER, Checks
from tests.simulation.node import Network, Node
from tests.simulation.planted_faults import AFTER_FAILOVERS, EMPTY, OFTEN, PLAIN, RARE, SILENT, patched
from tests.simulation.server import Server
from tests.simulation.simulate import simulate, simulated
from tests.simulation.world import World

COUNT = int(os.environ.get("LOWKIQ_SIMULATIONS", "50"))
FIRST = int(os.environ.get("LOWKIQ_SIMULATION_SEED", "0"))
CHUNK = 50


def check(seeds):
    """Run the clusters; return how often they were resized. Few of them may not be."""
    runs = faults = resizes = 0
    for seed in seeds:
        report = simulate(seed)
        assert not report.violations, f"python -m tests.simulation.simulate {seed}: {report.violations}"
        runs, faults = runs + report.runs, faults + report.faults
        resizes += report.resizes
    assert runs > 30 * len(seeds)
    assert faults > 2 * len(seeds)
    return resizes


@pytest.mark.random
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_whatever_dies_nothing_is_lost_doubled_or_overtaken(first):
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    assert check(seeds) > len(seeds) // 10


@other_each_time
@pytest.mark.full
@pytest.mark.random
@pytest.mark.timeout(0)
def test_other_clusters_in_each_run(rounds):
    first = random.SystemRandom().randrange(10**6, 10**9)
    for count in rounds(5 * CHUNK):
        check(range(first, first + count))
        first += count


def test_a_seed_replays_whatever_the_hash_seed():
    def trace(hash_seed):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.simulation.simulate", "7"]
        return subprocess.run(command, env=env, capture_output=True, check=True).stdout

    first = trace("1")
    assert first.count(b"\n") > 5
    assert trace("2") == first


#: With seed 0 (8.0) and 10 (8.5) the nodes try the same shards at once; the later one gets others at once.
@pytest.mark.parametrize("seed", [0, 1, 2, 10])
@pytest.mark.parametrize("every", [8.0, 8.5, 9.0])
def test_x_short_outages_do_not_begin_the_wait_for_a_lost_lease_anew(seed, every):
    """X: shards that were released on another Redis process, T = 10 s, Redis away for 2.5 s every 9 s."""
    assert owned_after(seed, outages=[number * every for number in range(1, 7)], away=2.5) < 12


def test_x_such_a_shard_waits_for_one_lease_time():
    """X: not for less, since a former owner may still work on it (its clock may be 5 % slow)."""
    assert 10 <= owned_after(0, outages=[], away=0) < 12


#: 1.05 lease times and a turn, by clocks that may be 5 % slow, and some round trips.
AT_MOST = (1.05 + 0.2) / 0.95 + 0.15


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_a_dead_nodes_shards_are_taken_as_soon_as_if_its_leases_were_always_read(first):
    assert max(taken_after(seed) for seed in range(first, first + 20)) < AT_MOST


@pytest.mark.parametrize("begins", [0.1, 0.6, 1.0])
def test_a_node_that_begins_meanwhile_does_not_keep_others_from_taking_them(begins):
    """It has its share of the shards by then, and would have to watch their leases first."""
    assert max(taken_after(seed, begins) for seed in range(5)) < AT_MOST


def test_a_share_that_is_kept_for_a_node_that_has_just_begun_is_found():
    with patched(Member, "is_new", value=lambda self, now, lease_seconds: False):
        assert max(taken_after(seed, 0.6) for seed in range(3)) > AT_MOST


def test_a_wait_that_begins_when_leases_are_read_is_found():
    with patched(LeaseWatch, "_unchanged_since", value=lambda self, state, now, heartbeat: now):
        assert max(taken_after(seed) for seed in range(20)) > AT_MOST


def test_shards_of_other_masters_are_taken_as_soon_while_one_is_away():
    assert max(taken_after(seed, away=1) for seed in range(6)) < AT_MOST


def test_an_outage_of_one_master_that_resets_what_was_seen_of_all_is_found():
    with patched(LeaseTable, "doubt", value=_doubts_all):
        assert max(taken_after(seed, away=1) for seed in range(2)) > AT_MOST


def test_an_outage_of_one_master_that_resets_nothing_is_found():
    with patched(LeaseTable, "doubt", value=lambda self, shard: self.watch(shard)):
        assert any(simulate(seed, ("master_away",)).violations for seed in range(40))


def _doubts_all(self, shard):
    self.mark_doubtful(0.0)
    return self.watch(shard)


def taken_after(seed, begins=None, lease_seconds=1.0, away=None):
    """Lease times until all shards of a node that dies have another owner; one ``begins`` in its place.

    Without those of the master that is ``away`` from then on.
    """
    with simulated() as threading:
        world, queue = World(seed), QueueSpec("q", shards=24)
        server = Server(world, queue.shard_refs())
        network = Network(world, server, lease_seconds)
        checks = Checks(world, server, "q", strict=False, lease_seconds=lease_seconds)

        def start(number):
            node = checks.nodes[f"n{number}"] = Node(
                network, threading, checks, queue, f"n{number}", strict=False, lanes=2, restart=lambda: None
            )
            return node

        node = [start(number) for number in range(3)][-1]
        died_at = world.random.uniform(8, 10)
        world.at(died_at, node.die)
        if away is not None:
            world.at(died_at, partial(server.be_away, away, 60.0))
        if begins is not None:
            world.at(died_at + begins * lease_seconds, partial(start, 3))
        world.run(died_at)
        assert sum(shard.owner == node.name for shard in server.shards.values()) == 8
        left = [state for shard, state in server.shards.items() if server.master_of[shard] != away]
        done = world.run(20, lambda: all(state.owner != node.name for state in left))
        taken_at = world.now if done else math.inf
        if begins is not None:
            shared = {"n0": 8, "n1": 8, "n3": 8}
            assert world.run(20, lambda: Counter(one.owner for one in server.shards.values()) == shared)
        world.end()
        assert not world.violations
        return (taken_at - died_at) / lease_seconds


def test_released_shards_have_an_owner_at_once_beside_free_ones_of_a_master_that_is_away():
    assert max(handed_over_after(seed) for seed in range(6)) < HAND_OVER


def test_free_shards_of_a_master_that_is_away_and_fill_the_room_are_found():
    with patched(Acquisition, "_may_be_refused", value=lambda self, shard: False):
        assert max(handed_over_after(seed) for seed in range(6)) > HAND_OVER


def handed_over_after(seed, away=1, lease_seconds=1.0):
    """Lease times until all shards of a node that stops have another owner.

    One master is unreachable before and after. Its shards wait out a lease of another process, which then
    ends.
    """
    with simulated() as threading:
        world, queue = World(seed), QueueSpec("q", shards=24)
        server = Server(world, queue.shard_refs())
        left = [state for shard, state in server.shards.items() if server.master_of[shard] != away]
        free = [state for shard, state in server.shards.items() if server.master_of[shard] == away]
        for shard in free:
            shard.epoch, shard.counter, shard.given_on = 5, 3, "before the failover"
        network = Network(world, server, lease_seconds)
        checks = Checks(world, server, "q", strict=False, lease_seconds=lease_seconds)
        for number in range(3):
            node = Node(
                network, threading, checks, queue, f"n{number}", strict=False, lanes=2, restart=lambda: None
            )
            checks.nodes[node.name] = node
        world.at(0.7 * lease_seconds, partial(server.be_away, away, 60.0))
        stops_at = world.random.uniform(2, 3) * lease_seconds
        world.run(stops_at)
        assert all(state.owner for state in left)
        most = max(checks.nodes.values(), key=lambda one: len(one.owned()))
        most.shut_down()
        done = world.run(
            stops_at + 3 * lease_seconds, lambda: all(state.owner not in ("", most.name) for state in left)
        )
        taken_at = world.now if done else math.inf
        assert not any(state.owner for state in free)
        server.away_until[away] = world.now
        shared = {node.name: 12 for node in checks.nodes.values() if node is not most}
        within = world.now + 5 * lease_seconds
        assert world.run(within, lambda: Counter(one.owner for one in server.shards.values()) == shared)
        world.end()
        assert not world.violations
        return (taken_at - stops_at) / lease_seconds


@pytest.mark.parametrize("seed", range(5))
def test_a_claim_that_came_back_with_older_data_is_found_in_a_shard_that_was_empty(seed):
    assert drains_after_older_data(seed)


@pytest.mark.parametrize("hint", ["it outlives a restart of Redis", "it is given for every shard"])
def test_a_wrong_hint_that_a_shard_is_empty_is_found(hint):
    with EMPTY[hint]:
        assert not all(drains_after_older_data(seed) for seed in range(5))


def drains_after_older_data(seed):
    """Whether a job runs again after Redis has forgotten that it ran, although no push announces it."""
    with simulated() as threading:
        world, queue = World(seed), QueueSpec("q", shards=1)
        server = Server(world, queue.shard_refs())
        (shard,) = server.shards
        network = Network(world, server, 1.0)
        checks = Checks(world, server, "q", strict=False, lease_seconds=1.0)
        Node(network, threading, checks, queue, "n", strict=False, lanes=1, restart=lambda: None)
        world.run(2)
        server.push(shard, "sender", 1, [("1", b"1", 1.0)])
        assert world.run(4, lambda: bool(server.shards[shard].model.processing))
        older = server.copy()
        world.run(world.now + 4)
        assert server.idle()
        server.stop()
        server.start(older)
        world.run(world.now + 4)
        world.end()
        assert not world.violations
        return server.idle()


def test_a_removed_shard_whose_lease_was_lost_before_is_no_shard_to_release():
    with simulated() as threading:
        world, queue = World(0), QueueSpec("q", shards=2)
        server = Server(world, queue.shard_refs())
        network = Network(world, server, 1.0)
        checks = Checks(world, server, "q", strict=False, lease_seconds=1.0)
        node = Node(network, threading, checks, queue, "n", strict=False, lanes=1, restart=lambda: None)
        assert world.run(4, lambda: len(node.owned()) == 2)
        lost = max(server.shards)
        server.damaged.add(lost)
        server.resize(1)
        assert world.run(8, lambda: lost not in node.owned())
        server.damaged.clear()
        node.shut_down()
        assert world.run(12, lambda: node.drained)
        assert server.shards[lost].owner == node.name
        checks.all_is_released(node)
        world.end()
        assert not world.violations


def owned_after(seed, outages, away, nodes=2, lease_seconds=10.0):
    """When (virtual s) all shards have an owner."""
    with simulated() as threading:
        world, queue = World(seed), QueueSpec("q", shards=24)
        server = Server(world, queue.shard_refs())
        for shard in server.shards.values():
            shard.epoch, shard.counter, shard.given_on = 5, 3, "before the restart"
        network = Network(world, server, lease_seconds)
        network.delay = 0.001
        checks = Checks(world, server, "q", strict=False, lease_seconds=lease_seconds)
        for number in range(nodes):
            node = Node(
                network, threading, checks, queue, f"n{number}", strict=False, lanes=4, restart=lambda: None
            )
            checks.nodes[node.name] = node
        for at in outages:
            world.at(at, server.stop)
            # The same process: the network was unreachable.
            world.at(at + away, partial(setattr, server, "down", False))
        world.run(60, lambda: all(shard.owner for shard in server.shards.values()))
        world.end()
        assert not world.violations
        return world.now


def found(mutant, seeds, only=(), first=0):
    with mutant:
        return any(simulate(seed, only).violations for seed in range(first, first + seeds))


@pytest.mark.parametrize("fault", PLAIN)
def test_a_planted_fault_is_found(fault):
    assert found(PLAIN[fault], 100)


@pytest.mark.parametrize("fault", OFTEN)
def test_a_planted_fault_is_found_where_it_shows(fault):
    mutant, only = OFTEN[fault]
    assert found(mutant, 40, only)


def test_an_outage_that_resets_nothing_that_was_seen_is_found():
    assert found(SILENT, 20, ("silence",))


@pytest.mark.parametrize("fault", first_often(AFTER_FAILOVERS))
def test_a_planted_fault_is_found_after_a_failover(fault):
    """By its first seed; by a later one when another change has altered what happens in that."""
    mutant, only, seed = AFTER_FAILOVERS[fault]
    assert not simulate(seed, only).violations
    assert found(mutant, 300, only, seed)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", RARE)
def test_a_rare_planted_fault_is_found(fault):
    mutant, only = RARE[fault]
    assert found(mutant, 4000, only)
