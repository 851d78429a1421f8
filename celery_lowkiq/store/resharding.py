"""Migrations of queues to another number of shards, and movers, which send jobs to their new shards."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from celery_lowkiq.rules.basics import Clock, SystemClock
from celery_lowkiq.rules.errors import (
    InvalidCall,
    MigrationAborted,
    MigrationPaused,
    NotAbortable,
    QueueMigrating,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import MAX_SHARDS, Layout, QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import (
    Export,
    Migration,
    MigrationState,
    Pace,
    Phase,
    ShardMoves,
    ShardProgress,
    UnresponsiveOwners,
    has_come_back,
    has_leavers,
    has_sorted,
    is_finished,
    last_export,
    pages_of,
    paused_turn,
    shards_of_turn,
    turn,
    turns_of_round,
)
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.store.claims import BEGINNING, Position, scan_call, scanned
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.durability import Durability, Servers, read_servers
from celery_lowkiq.store.keys import ID_KEYS, SHARD_KEYS, announcement, queue_key, shard_keys, shard_of_key
from celery_lowkiq.store.progress import Progress, Tally
from celery_lowkiq.store.records import id_bytes, parse_id, reads_replies
from celery_lowkiq.store.registry import check_format, parse_layout, registered, restart_call
from celery_lowkiq.store.script import ScriptCall, load

# The shards of a queue that moves, as a mover reads and changes them.

#: Limits of a transfer: payloads and call records, and their bytes.
TRANSFER_PAYLOADS = 1000
TRANSFER_BYTES = 256 * 1024


class MovingShards:
    """Makes and sends the scripts of a migration."""

    def __init__(
        self, client: Client, queue: QueueSpec, lease_seconds: float, now: Callable[[], float]
    ) -> None:
        self._client = client
        self._queue = queue
        self._owners = UnresponsiveOwners(lease_seconds)
        self._now = now

    def ref(self, index: int) -> ShardRef:
        return ShardRef(self._queue.name, index)

    def call(self, name: str, index: int, rest: Sequence[bytes] = (), /, **args: Any) -> ScriptCall:
        return load(name).call(shard_keys(self.ref(index)), rest, **args)

    def send_here(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Send scripts. The reply of an unreachable master is None."""
        found, unreachable = self._client.each(dict(enumerate(calls)))
        lost = [shard_of_key(calls[n].keys[0]) for n in unreachable]
        self._owners.doubted(shard.index for shard in lost if shard is not None)
        return [found.get(n) for n in range(len(calls))]

    # -- what shards have to do

    def read(self, limits: Mapping[int, int]) -> dict[int, ShardMoves]:
        """Read what shards have to do; ``limits``: by shard, how many ids that wait to be sorted.

        Leaves out shards whose master is unreachable, unless that is all.
        """
        calls = [self.call("read_moves", index, limit=limit) for index, limit in limits.items()]
        replies = dict(zip(limits, self.send_here(calls), strict=True))
        if not any(replies.values()):
            raise StoreUnavailable("Redis is not available: the masters of these shards are unreachable")
        return {index: self._moves(index, reply) for index, reply in replies.items() if reply is not None}

    def doubt(self) -> None:
        """Watch the owners of all shards from anew: Redis does not answer."""
        self._owners.doubted()

    def _moves(self, index: int, reply: list[Any]) -> ShardMoves:
        route, gen, moving, waiting, inflight, pending, counts, staying, owner = reply
        owner, now = parse_id(owner), self._now()
        self._owners.observed(index, owner, now)
        return ShardMoves(
            route.decode(),
            int(gen),
            tuple(map(parse_id, moving)),
            waiting,
            tuple(map(parse_id, inflight)),
            tuple(map(int, pending)),
            counts,
            bool(staying),
            "" if self._owners.unresponsive(index, now) else owner,
        )

    def received(self, exports: Sequence[Export]) -> dict[Export, int]:
        """Read the numbers of the last transfers by source and shard, but of unreachable masters."""
        found, _ = self._client.each_command(
            {
                each: ("HGET", shard_keys(self.ref(each.shard))["outbox"], f"received:{each.source}")
                for each in exports
            }
        )
        return {export: int(reply or 0) for export, reply in found.items()}

    # -- what moves

    def export(self, migration: Migration, export: Export, number: int) -> ScriptCall:
        """Return the call that takes ids from their source; ``number``: of the last transfer received."""
        return self.call(
            "export",
            export.source,
            list(map(id_bytes, export.ids)),
            gen=migration.gen,
            shard=export.shard,
            number=number,
            counts=int(export.counts),
            limit=TRANSFER_PAYLOADS,
            max_bytes=TRANSFER_BYTES,
            silent=self._owners.unresponsive(export.source, self._now()),
        )

    def import_jobs(self, migration: Migration, export: Export, number: int, data: bytes) -> ScriptCall:
        """Return the call that brings a transfer to its shard."""
        queue = replace(self._queue, shards=migration.layout.shards)
        return self.call(
            "import_jobs",
            export.shard,
            merge=queue.merge.value,
            policy=queue.policy,
            gen=migration.gen,
            shard=export.source,
            number=number,
            data=data,
            **announcement(self.ref(export.shard)),
        )

    def release(self, script: str, migration: Migration, index: int, ids: Sequence[str]) -> ScriptCall:
        """Return the call of ``relay`` or ``stay``, which lets claims take ids of a shard."""
        names = list(map(id_bytes, ids))
        return self.call(script, index, names, gen=migration.gen, **announcement(self.ref(index)))


# Searches shards for what is kept of ids that have no waiting job, and belong to another shard.

#: Keys that may have entries of an id without a job in ``moving``. All else belongs to one of these.
SEARCHED = (
    *("due", "due_prioritized", "due_paused", "paused", "dead_ids", "calls"),
    *("done_scores", "buckets", "tries", "crash_marks"),
)
#: Entries of one step.
STEP = 500


@dataclass
class _Place:
    """How far the search of a shard has come."""

    key: int = 0
    position: Position = BEGINNING


class StraySearch:
    """A search of each source, in steps.

    It begins after the waiting jobs have left, so it finds all: only what is in processing can come back to
    where it has been, and that is known.
    """

    def __init__(self) -> None:
        #: Found ids, by shard, that may not have left yet.
        self.strays: dict[int, dict[str, None]] = defaultdict(dict)
        self._places: dict[int, _Place] = {}

    def is_done(self, index: int) -> bool:
        """True if a shard was searched, and all that was found has left it."""
        place = self._places.get(index)
        return place is not None and place.key == len(SEARCHED) and not self.strays[index]

    def forget(self, index: int, ids: Iterable[str]) -> None:
        """Note that nothing is left of ids in a shard."""
        for job_id in ids:
            self.strays[index].pop(job_id, None)

    def go_on(self, client: Client, queue: str, migration: Migration, shards: Sequence[int]) -> bool:
        """Search the next part of each shard that has not been searched. Return whether there was one."""
        self._skip_empty(client, [ShardRef(queue, n) for n in shards if n not in self._places])
        left = [index for index in shards if self._places[index].key < len(SEARCHED)]
        calls = [self._call(ShardRef(queue, index)) for index in left]
        for index, reply in zip(left, client.all(calls), strict=True):
            place = self._places[index]
            place.position, found = scanned(reply)
            for member, _ in found:
                job_id = parse_id(member.partition(b"\0")[0])
                if migration.leaves(index, job_id):
                    self.strays[index][job_id] = None
            if not place.position.cursor:
                place.key += 1
        return bool(left)

    def _skip_empty(self, client: Client, shards: Sequence[ShardRef]) -> None:
        commands = [("EXISTS", *(shard_keys(shard)[name] for name in SEARCHED)) for shard in shards]
        replies = client.commands(commands)
        for shard, count in zip(shards, replies, strict=True):
            self._places[shard.index] = _Place(0 if count else len(SEARCHED))

    def _call(self, shard: ShardRef) -> ScriptCall:
        place = self._places[shard.index]
        name = SEARCHED[place.key]
        command = "ZSCAN" if SHARD_KEYS[name] == "zset" else "HSCAN"
        return scan_call(shard_keys(shard)[name], place.position, STEP, command)


# The state of a queue's migration in its own key: begins one, and begins its phases.

#: Fields of a queue's key: when its migration began, was paused, and was aborted.
TIMES = ("migration_began", "migration_paused", "migration_aborted")
#: Shards that are counted in one round trip.
COUNTED_SHARDS = 512
#: Jobs of all shards by which those are estimated that will leave their shards.
SAMPLED_JOBS = 5000
#: Parts of a shard's jobs that these are of.
SLICES = 16


class StoredMigration(NamedTuple):
    """A migration, and the queue's last pause, which shards follow that are added."""

    migration: Migration
    pause: str
    since: str
    began_at: float | None
    paused_since: float | None
    aborted_at: float | None

    @property
    def is_paused(self) -> bool:
        """True if an operator paused it, and jobs have not all moved."""
        return self.paused_since is not None and self.migration.phase is not Phase.SEAL


@reads_replies
class Migrations:
    """Migrations of one queue. Methods raise FormatMismatch, StoreError."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._keys = {"queue": queue_key(queue)}

    def begin(self, shards: int) -> bool:
        """Begin the migration to another number of shards. False when one is going on, or has just begun.

        Raises StoreUnavailable, and begins none, while a master of a former or a new shard is unreachable.
        """
        self.catch_up(shards)
        self._check_masters(shards)
        return self.begin_caught_up(shards)

    def catch_up(self, shards: int) -> None:
        """Let a queue's own key that a failover has taken back have the last migration of its shards.

        Otherwise, the next one, to ``shards``, would have its number, and shards would take both for one.
        """
        (stored,) = self._client.commands([("HGET", self._keys["queue"], "shards")])
        if (layout := parse_layout(stored)) is not None:
            registered(
                self._client, QueueSpec(self._queue, shards=layout.shards, former_shards=layout.former)
            )
            if shards > layout.count:
                # Shards that the queue has forgotten may have been in it.
                registered(self._client, QueueSpec(self._queue, shards=shards))

    def _check_masters(self, shards: int) -> None:
        (stored,) = self._client.commands([("HGET", self._keys["queue"], "shards")])
        if (layout := parse_layout(stored)) is not None:
            refs = QueueSpec(self._queue, shards=max(shards, layout.count)).shard_refs()
            self._client.commands([("HGET", shard_keys(shard)["meta"], "shards") for shard in refs])

    def begin_caught_up(self, shards: int) -> bool:
        """Begin as :meth:`begin` does, after :meth:`catch_up`, whether masters are there or not."""
        fields = ("HMGET", self._keys["queue"], "gen", "shards")
        ((gen, former),) = self._client.commands([fields])
        call = load("begin_migration").call(self._keys, gen=gen or 0, shards=former or "", wanted=shards)
        return self._begin_by(call)

    def stored(self) -> StoredMigration | None:
        """Return the migration that is going on, as it is stored; None without one."""
        fields = ("shards", "format", "gen", "phase", "migration", "pause", "paused", *TIMES)
        (stored,) = self._client.commands([("HMGET", self._keys["queue"], *fields)])
        shards, stored_format, *texts = ((value or b"").decode() for value in stored)
        if shards or stored_format:
            check_format(self._queue, stored_format)
        gen, phase, route, pause, since, *times = texts
        layout = Layout.parse(route)
        if layout is None or phase in ("", Phase.IDLE.value):
            return None
        migration = Migration(int(gen), Phase(phase), layout)
        return StoredMigration(
            migration, pause or "0", since, *(float(time) if time else None for time in times)
        )

    def pause(self, wanted: bool) -> bool | None:
        """Pause or resume the migration. Return whether it was not so before; None without one to pause."""
        changed = self._client.call(load("pause_migration").call(self._keys, wanted=int(wanted)))
        return None if changed < 0 else bool(changed)

    def abort(self) -> int | None:
        """Go back to the former number of shards. Return it; None without a migration to abort.

        Raises NotAbortable when the migration may be the way back of another one.
        """
        former = int(self._client.call(load("abort_migration").call(self._keys)) or 0)
        if former < 0:
            raise NotAbortable(self._queue, -former)
        return former or None

    def read(self) -> Migration | None:
        """Return the migration that is going on; None without one."""
        stored = self.stored()
        return stored and stored.migration

    def state(self) -> MigrationState | None:
        """Return the migration that is going on, with the counts of its shards; None without one."""
        stored = self.stored()
        if stored is None:
            return None
        migration = stored.migration
        refs = [ShardRef(self._queue, index) for index in migration.shards]
        replies: list[list[Any]] = []
        for start in range(0, len(refs), COUNTED_SHARDS):
            page = refs[start : start + COUNTED_SHARDS]
            calls = [load("read_progress").call(shard_keys(shard)) for shard in page]
            replies += self._client.all(calls)
        if stored.is_paused and migration.phase is Phase.MOVE:
            staying = self._staying(migration, refs, replies)
            replies = [[*reply, count] for reply, count in zip(replies, staying, strict=True)]
        return MigrationState(
            queue=self._queue,
            gen=migration.gen,
            phase=migration.phase,
            former=migration.former,
            shards=migration.layout.shards,
            began_at=stored.began_at,
            paused_since=stored.paused_since if stored.is_paused else None,
            aborted_at=stored.aborted_at,
            progress=tuple(
                ShardProgress(shard.index, route.decode(), *counts)
                for shard, (route, *counts) in zip(refs, replies, strict=True)
            ),
        )

    def _staying(self, migration: Migration, refs: list[ShardRef], counts: list[list[Any]]) -> list[int]:
        """Estimate how many jobs of each shard will leave it after a pause.

        Slices of all due times are counted, because more of the oldest jobs leave than of newer ones.
        """
        claimable = [waiting - unsorted for _, waiting, unsorted, *_ in counts]
        commands = [
            ("ZRANGE", shard_keys(shard)["due"], start, start + size - 1)
            for shard, count in zip(refs, claimable, strict=True)
            for start, size in slices(count, SAMPLED_JOBS // len(refs))
        ]
        samples = iter(self._client.commands(commands))
        found = []
        for shard, count in zip(refs, claimable, strict=True):
            ids = [parse_id(job_id) for _ in range(SLICES) for job_id in next(samples)]
            leaving = sum(migration.leaves(shard.index, job_id) for job_id in ids)
            found.append(round(count * leaving / max(1, len(ids))))
        return found

    def restart(self, gen: int, phase: Phase) -> bool:
        """Begin migration ``gen``, in this phase, once more under the next number: a failover has
        lost what it did in a shard, and sealed shards take no transfer.
        """
        return self._begin_by(restart_call(self._queue, gen, phase))

    def begin_phase(self, migration: Migration, phase: Phase) -> bool:
        """Begin the next phase of a migration. False when another mover was first."""
        layout = migration.layout
        route = layout.route if phase in (Phase.FLIP, Phase.MOVE) else str(layout.shards)
        call = load("set_phase").call(
            self._keys,
            gen=migration.gen,
            phase=migration.phase.value,
            next=phase.value,
            shards=route,
        )
        return self._begin_by(call)

    def _begin_by(self, call: ScriptCall) -> bool:
        return bool(self._client.call(call) == 1)


def slices(count: int, sampled: int) -> list[tuple[int, int]]:
    """Return where each of SLICES equal parts of ``count`` jobs begins, and how many of it are a sample."""
    starts = [count * number // SLICES for number in range(SLICES + 1)]
    most = max(1, sampled // SLICES)
    return [(start, max(1, min(end - start, most))) for start, end in pairwise(starts)]


# A mover takes a queue through its migration, in turns over all shards.
#
# Any number of movers may work on one queue, and each may stop at any step: what a turn does is safe to
# repeat.

#: Lease time (s) of workers when nothing else is known.
LEASE_SECONDS = 10.0
#: Ids that cannot move, up to which a turn looks behind them: Redis returns as many in some ms.
STUCK_IDS = 10_000
#: Reply of ``import_jobs.lua`` when the shard is not in the migration.
STALE = -1


@reads_replies
class Mover:
    """Moves one queue. Methods raise FormatMismatch, StoreError; the next turn goes on after it."""

    def __init__(
        self,
        client: Client,
        queue: QueueSpec,
        durability: Durability | None = None,
        clock: Clock | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """``lease_seconds``: of the workers of the queue."""
        self.client: Client = client
        #: Number of jobs that became claimable by this mover.
        self.sorted_jobs: int = 0
        self._queue = queue
        self._durability = durability or Durability()
        self._now = (clock or SystemClock()).monotonic
        self._migrations = Migrations(client, queue.name)
        self._shards = MovingShards(client, queue, lease_seconds, self._now)
        self._pace = Pace()
        self._took = 0.0
        #: True if shards have joined a later migration: a failover may have taken the queue's own key back.
        self._is_behind = False
        self._begin(0)

    def _begin(self, gen: int) -> None:
        self._gen = gen
        self._turns = 0
        #: Turns since one that had something to do.
        self._idle_turns = 0
        self._finished: set[int] = set()
        self._search = StraySearch()
        #: By shard, ids that the last turn could not sort because they were in processing.
        self._stuck: dict[int, int] = defaultdict(int)

    def turn(self) -> bool:
        """Do one turn. False when there was nothing to do in any shard."""
        began_at = self._now()
        try:
            if self._is_behind:
                self._is_behind = False
                self._migrations.catch_up(self._queue.shards)
            asked_at = self._now()
            stored = self._migrations.stored()
            self._pace.asked(self._now() - asked_at)
            return stored is not None and self._turn(stored)
        except StoreUnavailable:
            self._shards.doubt()
            raise
        finally:
            self._took = self._now() - began_at

    def pause(self, movers: int) -> float:
        return self._pace.pause_after(self._took, movers)

    def _turn(self, stored: StoredMigration) -> bool:
        migration = stored.migration
        if migration.gen != self._gen:
            self._begin(migration.gen)
        if migration.phase is Phase.PREPARE:
            if stored.is_paused:
                return False
            return self._migrations.begin_phase(migration, Phase.FLIP)
        if migration.phase is Phase.FLIP:
            if not self._flip(stored):
                return False
            return self._migrations.begin_phase(migration, Phase.MOVE)
        if migration.phase is Phase.MOVE:
            return self._move(stored)
        return self._seal(migration)

    # -- flip

    def _flip(self, stored: StoredMigration) -> bool:
        """Close all shards of both numbers, then open them. Return whether all are open."""
        migration = stored.migration
        route = migration.layout.route
        servers = self._servers(migration.shards)
        closed = self._close(migration, route)
        if any(int(gen) != migration.gen for _, gen, *_ in closed):
            self._is_behind = True
            return False
        self._confirm(migration.shards, servers)
        if any(transfers for *_, transfers, _ in closed) and not self._deliver(migration):
            return False
        floors = {
            "score": max(int(score) for _, _, score, *_ in closed),
            "last_call": max(int(call) for _, _, _, call, *_ in closed),
        }
        opened = self.client.all([self._open_call(stored, index, floors) for index in migration.shards])
        # Some are sealed already when the queue's own key was lost.
        routes = [(route, migration.sealed(index)) for index in migration.shards]
        return all(
            int(gen) == migration.gen and stored_route.decode() in expected
            for (stored_route, gen), expected in zip(opened, routes, strict=True)
        )

    def _close(self, migration: Migration, route: str) -> list[Any]:
        """Close all shards, in as many steps as the fullest one needs, and return their last replies."""
        fences = [
            self._shards.call("fence", index, gen=migration.gen, route=route) for index in migration.shards
        ]
        closed = self.client.all(fences)
        while left := [place for place, (*_, is_left) in enumerate(closed) if is_left]:
            again = self.client.all([fences[place] for place in left])
            for place, reply in zip(left, again, strict=True):
                closed[place] = reply
        return closed

    def _deliver(self, migration: Migration) -> bool:
        """Deliver the transfers of a migration that was aborted. Return whether none is left."""
        moves = self._read(migration, migration.shards)
        if len(moves) < len(migration.shards):
            return False
        left = [Export(index, shard) for index, found in moves.items() for shard in found.pending]
        self._transfer(migration, moves, left, ())
        moves = self._read(migration, migration.shards)
        return not any(found.pending for found in moves.values())

    def _open_call(self, stored: StoredMigration, index: int, floors: Mapping[str, int]) -> ScriptCall:
        migration = stored.migration
        return self._shards.call(
            "open",
            index,
            shards=migration.layout.route,
            gen=migration.gen,
            pause=stored.pause,
            since=stored.since,
            **floors,
        )

    # -- move

    def _move(self, stored: StoredMigration) -> bool:
        migration = stored.migration
        # A mover that has nothing to do waits between its turns: each looks at all shards then.
        is_idle = self._idle_turns >= turns_of_round(migration)
        shards = migration.shards if is_idle else shards_of_turn(migration, self._turns)
        self._turns += 1
        moves = self._read(migration, shards)
        gens = {found.gen for found in moves.values()}
        if max(gens) > migration.gen:
            self._is_behind = True
            return False
        if min(gens) < migration.gen or any(found.route == "closed" for found in moves.values()):
            # A Redis that has lost its last writes: what was finished may not be.
            self._begin(migration.gen)
            return self._flip(stored)
        if any(found.route == migration.sealed(index) for index, found in moves.items()):
            # A failover of the queue's own key has lost the next phase, and sealed shards give no answers.
            return self._migrations.restart(migration.gen, Phase.MOVE)
        if stored.is_paused:
            return self._pause(migration, moves)
        if staying := [index for index, found in moves.items() if found.staying]:
            self.client.all([self._shards.call("hold", index, gen=migration.gen) for index in staying])
            return True
        if any(has_leavers(migration, index, moves[index]) for index in self._finished.intersection(moves)):
            # Another mover has found that out, and has closed the shard again.
            self._begin(migration.gen)
        ready = [n for n in moves if n < migration.former and has_sorted(migration, n, moves[n])]
        # Searched before the shard was read: what has left it since is not on its way now.
        searched = [index for index in ready if self._search.is_done(index)]
        searching = self._search.go_on(self.client, self._queue.name, migration, ready)
        done = turn(migration, moves, self._search.strays)
        last = [found for index in searched if (found := last_export(migration, index, moves[index]))]
        self._finished.update(n for n in searched if is_finished(migration, n, moves[n]))
        if len(self._finished) == migration.former:
            return self._finish(migration)
        relays = [self._shards.release("relay", migration, *of_shard) for of_shard in done.relays.items()]
        self.sorted_jobs += sum(map(len, done.relays.values()))
        moved = self._transfer(migration, moves, [*done.exports, *last], relays)
        return self._goes_on(migration, bool(relays or moved or searching))

    def _goes_on(self, migration: Migration, done: bool) -> bool:
        self._idle_turns = 0 if done else self._idle_turns + 1
        return self._idle_turns < turns_of_round(migration)

    def _finish(self, migration: Migration) -> bool:
        """Begin the last phase, if no failover has brought anything back to a source meanwhile."""
        servers = self._servers(migration.shards)
        moves = self._read(migration, migration.sources)
        if any(has_come_back(migration, index, found) for index, found in moves.items()):
            self._begin(migration.gen)
            return True
        # A sealed shard takes no transfer, and lets calls run: no failover may bring a job back from now on.
        self._confirm(migration.shards, servers)
        if len(moves) < migration.former:
            return False
        return self._migrations.begin_phase(migration, Phase.SEAL)

    def _pause(self, migration: Migration, moves: Mapping[int, ShardMoves]) -> bool:
        """Hold nothing back: jobs that leave may be claimed where they are, unless calls wait for them."""
        staying, done = paused_turn(migration, moves)
        stays = [self._shards.release("stay", migration, *of_shard) for of_shard in staying.items()]
        relays = [self._shards.release("relay", migration, *of_shard) for of_shard in done.relays.items()]
        parted = self.client.all(stays)
        rest = [
            Export(index, migration.layout.home(job_id), (job_id,))
            for index, ids in zip(staying, parted, strict=True)
            for job_id in map(parse_id, ids)
        ]
        moved = self._transfer(migration, moves, [*done.exports, *rest], relays)
        return self._goes_on(migration, bool(stays or relays or moved))

    def _read(self, migration: Migration, shards: range) -> dict[int, ShardMoves]:
        """Read what shards have to do. Leaves out those whose master is unreachable, unless that is all."""
        pages = pages_of(migration, shards)
        limits = {index: page + min(self._stuck[index], STUCK_IDS) for index, page in pages.items()}
        return self._shards.read(limits)

    def _transfer(
        self,
        migration: Migration,
        moves: Mapping[int, ShardMoves],
        exports: Sequence[Export],
        relays: Sequence[ScriptCall],
    ) -> bool:
        """Take ids from their sources to their shards. Return whether any has moved, or was complete.

        What comes from an unreachable master, or goes to one, has its turn later.
        """
        shards = self._shards
        servers = self._servers(index for each in exports for index in (each.source, each.shard))
        numbers = shards.received(exports)
        exports = [export for export in exports if export in numbers]
        calls = [shards.export(migration, export, numbers[export]) for export in exports]
        replies = shards.send_here([*calls, *relays])
        for index in moves:
            self._stuck[index] = 0
        taken: list[tuple[Export, int]] = []
        imports, answered = [], []
        for export, reply in zip(exports, replies, strict=False):
            if not reply:
                continue
            number, data, none, busy = reply
            if ids := [parse_id(job_id) for job_id in none]:
                self._search.forget(export.source, ids)
                answered.append(shards.release("relay", migration, export.shard, ids))
            self._count_stuck(migration, moves, export, {parse_id(job_id) for job_id in busy})
            if number:
                taken.append((export, number))
                self.sorted_jobs += len(export.ids) - len(none) - len(busy)
                imports.append(shards.import_jobs(migration, export, number, data))
        # A source that a failover takes back to before an export would send the same payloads again, and one
        # that it takes back to before the end of a run would run that again beside others of the id.
        answers = zip(exports, replies, strict=False)
        self._confirm((each.source for each, reply in answers if _has_reported(reply)), servers)
        received = shards.send_here([*imports, *answered])
        if STALE in received:
            # A failover has lost the end of a transfer, and the phase after it, in which shards were sealed.
            return self._migrations.restart(migration.gen, Phase.MOVE)
        arrived = [each for each, reply in zip(taken, received, strict=False) if reply not in (STALE, None)]
        self._confirm((export.shard for export, _ in arrived), servers)
        forgets = [
            shards.call(
                "forget_transfer", export.source, gen=migration.gen, shard=export.shard, number=number
            )
            for export, number in arrived
        ]
        shards.send_here(forgets)
        return bool(arrived or answered)

    def _count_stuck(
        self, migration: Migration, moves: Mapping[int, ShardMoves], export: Export, busy: set[str]
    ) -> None:
        """Note ids that could not move: the next turn reads as many more because those behind them may."""
        layout = migration.layout
        # When all of a transfer stay, so may those for which it had no room.
        all_stay = len(busy) == len(export.ids) > 0
        for index in moves.keys() & {export.source, export.shard}:
            self._stuck[index] += sum(
                job_id in busy
                or (all_stay and (layout.former_home(job_id), layout.home(job_id)) == export.pair)
                for job_id in moves[index].moving
            )

    # -- seal

    def _seal(self, migration: Migration) -> bool:
        """End the migration in each shard. Calls that came since the last turn have nothing elsewhere."""
        ends = {"shards": migration.layout.route, "gen": migration.gen}
        seals = [self._shards.call("seal", n, sealed=migration.sealed(n), **ends) for n in migration.shards]
        servers = self._servers(migration.shards)
        replies = self.client.all(seals)
        if all(sealed and not left for sealed, left in replies):
            # On a cluster, another master stores the queue's own key, which ends the migration.
            # A failover that loses a seal after that would leave its shard in the migration.
            self._confirm(migration.shards, servers)
            return self._migrations.begin_phase(migration, Phase.IDLE)
        moves = self._read(migration, migration.shards)
        if any(found.gen < migration.gen or found.route == "closed" for found in moves.values()):
            # A failover has lost that the shard took part: it is to be emptied, and sealed ones take nothing.
            return self._migrations.restart(migration.gen, Phase.SEAL)
        relays = [
            self._shards.release("relay", migration, n, found.moving)
            for n, found in moves.items()
            if found.moving
        ]
        self.client.all(relays)
        return bool(relays)

    # -- Redis

    def _servers(self, shards: Iterable[int]) -> Servers:
        return read_servers(self.client, map(self._shards.ref, shards))

    def _confirm(self, shards: Iterable[int], servers: Servers) -> None:
        return self._durability.confirm_move(self.client, map(self._shards.ref, shards), servers)


def _has_reported(reply: list[Any] | None) -> bool:
    """True if the source sent a transfer, or reported that it has nothing left of an id."""
    return bool(reply and (reply[0] or reply[2]))


# A whole migration, from the first step to the last.

#: Seconds between two looks at jobs in processing, which move when they have ended.
LOOK = 0.05


def check_shards(shards: int) -> None:
    """Raise InvalidCall for an invalid number of shards."""
    if not is_whole(shards, 1, MAX_SHARDS):
        raise InvalidCall(invalid("shards", shards, f"a whole number from 1 to {MAX_SHARDS}"))


@reads_replies
def memory_of(client: Client, queue: QueueSpec) -> int:
    """Return the bytes of memory that Redis estimates for all ids of a queue. Raises StoreError."""
    keys = (shard_keys(shard)[name] for shard in queue.shard_refs() for name in sorted(ID_KEYS))
    return sum(
        size or 0 for size in client.commands([("MEMORY", "USAGE", key) for key in keys], readable=True)
    )


@reads_replies
def reshard(
    mover: Mover, queue: QueueSpec, shards: int, progress: Progress | None = None, movers: int = 1
) -> int:
    """Move a queue to another number of shards; return the number of jobs that were sorted here.

    Continues a migration to the same number that another process has begun. ``progress`` gets the number of
    jobs sorted so far, and may raise Stop: then the workers of the queue go on. ``movers``: the number of
    these workers, and one. Raises InvalidCall, QueueMigrating, MigrationPaused, MigrationAborted,
    FormatMismatch, StoreError.
    """
    check_shards(shards)
    migrations = Migrations(mover.client, queue.name)
    tally = Tally(progress)
    moves = False
    while (stored := migrations.stored()) or registered(mover.client, queue).layout != Layout(shards):
        if stored is None and not moves:
            moves = migrations.begin(shards)
            continue
        if stored is None or (moves and stored.migration.layout.shards != shards):
            raise MigrationAborted(queue.name, shards)
        moves, layout = True, stored.migration.layout
        if layout.shards != shards:
            raise QueueMigrating(queue.name, layout)
        if stored.is_paused:
            raise MigrationPaused(queue.name, layout)
        tally.begin()
        before = mover.sorted_jobs
        threading.Event().wait(mover.pause(movers) if mover.turn() else LOOK)
        tally.add(mover.sorted_jobs - before)
    return tally.count
