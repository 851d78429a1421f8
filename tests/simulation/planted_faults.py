"""Faults planted in the worker, the server and the model, which simulations must find.

Each is a patch; beside it are the faults of the simulated cluster that bring it to light.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from celery_lowkiq.rules import leases as rules
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.worker.acquisition import Acquisition
from celery_lowkiq.worker.exclusion import Exclusion
from celery_lowkiq.worker.lane import DueTable
from celery_lowkiq.worker.lease_table import LeaseTable
from celery_lowkiq.worker.members import Heartbeat
from celery_lowkiq.worker.owned_shard import OwnedShard
from celery_lowkiq.worker.ownership import Ownership, Resizing
from tests.model.model import Model
from tests.simulation import node as nodes_of_simulation
from tests.simulation.server import Server


def _owned_by_anybody(self, lease):
    return self.shards[lease.shard]


def _look_without_server(look):
    def mutant(self, state, now):
        if self.since is not None and replace(state, server=self.seen.server) == self.seen:
            return replace(self, seen=state)
        return look(self, state, now)

    return mutant


def _naive_epoch(acquire):
    def mutant(self, shard, owner, seen, known_epoch):
        clock, self.clock = self.clock, -1e9
        try:
            return acquire(self, shard, owner, seen, 0)
        finally:
            self.clock = clock

    return mutant


def _seen_on_any_server(acquire):
    def mutant(self, shard, owner, seen, known_epoch):
        return acquire(self, shard, owner, replace(seen, server=self.name_of(shard)), known_epoch)

    return mutant


def _repeated_on_any_server(acquire):
    def mutant(self, shard, owner, seen, known_epoch):
        state = self.shards[shard]
        if state.owner == owner:
            state.given_on = self.name_of(shard)
        return acquire(self, shard, owner, seen, known_epoch)

    return mutant


def _as_if_nothing_was_known(released):
    return lambda self: released(replace(self, known_epoch=0))


def _as_if_the_first_server_was_seen(released):
    return lambda self: released(replace(self, restarted=False))


def _without_its_server(renew):
    def mutant(self, *times):
        lease = self.lease
        try:
            return renew(self, *times)
        finally:
            self.lease = lease

    return mutant


def _without_naming_the_server(release):
    def mutant(self, lease, unsettled=False):
        state = self.shards[lease.shard]
        given_on, owned = state.given_on, state.owner
        try:
            return release(self, lease, unsettled)
        finally:
            if owned:
                state.given_on = given_on

    return mutant


def _as_of_its_sending(renew):
    return lambda self, renewed, sent_at, answered_at: renew(self, renewed, sent_at, sent_at)


def _as_if_it_had_released_nothing(renew):
    def mutant(self, *answer):
        self.may_be_released = False
        return renew(self, *answer)

    return mutant


def _wherever_it_arrives(release):
    def mutant(self, lease, unsettled=False):
        return release(self, replace(lease, server=self.name_of(lease.shard)), unsettled)

    return mutant


def _settles_any_claim(settle):
    def mutant(self, job_id, claim, *rest):
        job = self.processing.get(job_id)
        return settle(self, job_id, job.claim if job else claim, *rest)

    return mutant


def _free_while_it_works(free):
    def mutant(self, watch, room):
        lane = self._table.lane_of(watch.shard)
        picked, lane._picked = lane._picked, None
        try:
            return free(self, watch, room)
        finally:
            lane._picked = picked

    return mutant


def _loses_half_of_a_failure(settle):
    def mutant(self, job_id, *rest):
        accepted = settle(self, job_id, *rest)
        if accepted and rest[1].value == "retry":
            self.waiting[job_id].items.popitem()
        return accepted

    return mutant


def _with_any_turn(unchanged_since):
    def mutant(self, state, now, heartbeat):
        turn = heartbeat.turn if heartbeat else state.turn
        return unchanged_since(self, replace(state, turn=turn), now, heartbeat)

    return mutant


def _of_the_next_turn(beat):
    def mutant(self, queues):
        self.turn += 1
        try:
            return beat(self, queues)
        finally:
            self.turn -= 1

    return mutant


def _only_once(add_shards):
    def mutant(self, dealt):
        if not self._watches:
            add_shards(self, dealt)

    return mutant


def patched(target, name, make=None, value=None):
    return mock.patch.object(target, name, make(getattr(target, name)) if make else value)


#: What a lane remembers of empty shards too long.
EMPTY = {
    "it outlives a restart of Redis": patched(DueTable, "doubt", value=lambda self: None),
    "it is given for every shard": patched(
        DueTable, "was_empty", value=lambda self, shard, open_claims: True
    ),
}
#: Found within a second, whatever the faults.
PLAIN = {
    "epochs grow by one": patched(Server, "acquire", _naive_epoch),
    "no check of owner and epoch": patched(Server, "_owned", value=_owned_by_anybody),
    "a failure is two changes": patched(Model, "settle", _loses_half_of_a_failure),
    "a node that stops releases nothing": patched(
        Ownership, "_release", value=lambda self, owned: self._table.remove(owned)
    ),
    "nothing is ever taken": patched(Acquisition, "_free", value=lambda self, watch, room: False),
}
#: Found within a second by the faults that bring it to light.
OFTEN = {
    "a shard is taken too early": (patched(rules, "TAKEOVER_LEASES", value=0.3), ("freeze", "cut")),
    "strict has no timer": (
        patched(nodes_of_simulation, "Strict", value=lambda timer: Exclusion()),
        ("freeze", "cut"),
    ),
    "a heartbeat covers what was renewed after it": (
        patched(LeaseWatch, "_unchanged_since", _with_any_turn),
        ("mute",),
    ),
    "added shards are not taken": (patched(LeaseTable, "add_shards", _only_once), ("resize",)),
    "removed shards are not left": (patched(Resizing, "give_up", value=lambda self: None), ("resize",)),
}
#: Found within a second where Redis does not answer for a while.
SILENT = patched(LeaseTable, "mark_doubtful", value=lambda self, now: None)
#: Of leases after a failover or the move of a slot: each with the faults that bring it to light, and the
#: first seed that does. An acquire that does not know its owner's lease on the same server is not among
#: them: the owner reads that lease, and acquires it under another epoch. Only tests/store/test_rules.py
#: finds it (test_an_acquire_whose_reply_was_lost_begins_the_lease_anew).
AFTER_FAILOVERS = {
    "a lease that was seen on another server may be taken": (
        patched(Server, "acquire", _seen_on_any_server),
        ("lose_race",),
        58,
    ),
    "an acquire that is repeated on another server is granted": (
        patched(Server, "acquire", _repeated_on_any_server),
        ("lose_race",),
        27,
    ),
    "a shard without a lease is free, whatever is known of it": (
        patched(LeaseWatch, "released", _as_if_nothing_was_known),
        ("lose_first",),
        13,
    ),
    "a shard without a lease is free on any server": (
        patched(LeaseWatch, "released", _as_if_the_first_server_was_seen),
        ("lose_first",),
        61,
    ),
    "an owner does not learn from renewals which server has its lease": (
        patched(OwnedShard, "renew", _without_its_server),
        ("move_slot", "join", "leave"),
        1,
    ),
    "an owner that may have released learns which server has its lease": (
        patched(OwnedShard, "renew", _as_if_it_had_released_nothing),
        ("lose_release", "join"),
        23,
    ),
    "a release does not name the server": (
        patched(Server, "release", _without_naming_the_server),
        ("move_slot", "join", "leave"),
        4,
    ),
    "an owner releases on a server that it does not know": (
        patched(Server, "_knows", value=lambda self, lease: True),
        ("move_slot", "join", "leave"),
        13,
    ),
}
#: Rare: each with the faults that bring it to light, and a directed test of its own elsewhere.
RARE = {
    "a released shard is free on any server": (
        patched(LeaseWatch, "released", value=lambda self: not self.seen.owner),
        ("roll_back", "leave", "join"),
    ),
    "looks at another server go on": (
        patched(LeaseWatch, "observed", _look_without_server),
        ("roll_back", "kill"),
    ),
    "a silent owner comes back on any server": (
        patched(OwnedShard, "lapsed", value=lambda self, now: False),
        ("lose_takeover",),
    ),
    "a renewal counts on another server by when it was sent": (
        patched(OwnedShard, "renew", _as_of_its_sending),
        ("lose_takeover",),
    ),
    "a shard that is released on another server is free at once": (
        patched(Server, "release", _wherever_it_arrives),
        ("lose_takeover",),
    ),
    "a shard is taken while an older epoch of it runs": (
        patched(Acquisition, "_free", _free_while_it_works),
        ("freeze", "cut"),
    ),
    "a heartbeat shows a turn whose renewals are yet to be sent": (
        patched(Heartbeat, "beat", _of_the_next_turn),
        ("mute",),
    ),
    "a settle ends any claim": (patched(Model, "settle", _settles_any_claim), ()),
    "what an ending process gave up is free at once": (
        patched(rules, "LEAVING", value=0.0),
        ("abandon", "join", "cut"),
    ),
}
