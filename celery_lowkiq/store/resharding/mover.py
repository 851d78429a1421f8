"""A mover takes a queue through its migration, in turns over all shards.

Any number of movers may work on one queue, and each may stop at any step: what a turn does is safe to repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery_lowkiq.rules.clock import Clock, SystemClock
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.resharding import (
    Export,
    Migration,
    Pace,
    Phase,
    ShardMoves,
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
from celery_lowkiq.store.jobs.durability import Durability, Servers, read_servers
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.records import parse_id
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import ScriptCall

from .migrations import Migrations, StoredMigration
from .moving_shards import MovingShards
from .strays import StraySearch

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
        #: Whether shards have joined a later migration: a failover may have taken the queue's own key back.
        self._is_behind = False
        self._begin(0)

    def _begin(self, gen: int) -> None:
        self._gen = gen
        self._turns = 0
        #: Turns since one that had something to do.
        self._idle_turns = 0
        self._finished: set[int] = set()
        self._search = StraySearch()
        #: By shard, ids that the last turn could not sort, since they were in processing.
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
        """Return how many seconds to wait after the last turn, beside other movers; ``movers``: of all."""
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
        opened = self._shards.send([self._open_call(stored, index, floors) for index in migration.shards])
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
        closed = self._shards.send(fences)
        while left := [place for place, (*_, is_left) in enumerate(closed) if is_left]:
            again = self._shards.send([fences[place] for place in left])
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
            self._shards.send([self._shards.call("hold", index, gen=migration.gen) for index in staying])
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
        # What is sealed takes no transfer, and lets calls run: no failover may bring a job back from now on.
        self._confirm(migration.shards, servers)
        if len(moves) < migration.former:
            return False
        return self._migrations.begin_phase(migration, Phase.SEAL)

    def _pause(self, migration: Migration, moves: Mapping[int, ShardMoves]) -> bool:
        """Hold nothing back: jobs that leave may be claimed where they are, unless calls wait for them."""
        staying, done = paused_turn(migration, moves)
        stays = [self._shards.release("stay", migration, *of_shard) for of_shard in staying.items()]
        relays = [self._shards.release("relay", migration, *of_shard) for of_shard in done.relays.items()]
        parted = self._shards.send(stays)
        rest = [
            Export(index, migration.layout.home(job_id), (job_id,))
            for index, ids in zip(staying, parted, strict=True)
            for job_id in map(parse_id, ids)
        ]
        moved = self._transfer(migration, moves, [*done.exports, *rest], relays)
        return self._goes_on(migration, bool(stays or relays or moved))

    def _read(self, migration: Migration, shards: range) -> dict[int, ShardMoves]:
        """Read what shards have to do. Leaves out those whose masters are away, unless that is all."""
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

        What comes from a master that is away, or goes to one, has its turn later.
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
        told = (export.source for export, reply in zip(exports, replies, strict=False) if _has_told(reply))
        self._confirm(told, servers)
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
        """Note ids that could not move: the next turn reads as many more, since those behind them may."""
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
        replies = self._shards.send(seals)
        if all(sealed and not left for sealed, left in replies):
            # The end stands in the queue's own key, which on a cluster is another master's: a failover that
            # loses a seal would leave a shard in a migration that nobody goes on with.
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
        self._shards.send(relays)
        return bool(relays)

    # -- Redis

    def _servers(self, shards: Iterable[int]) -> Servers:
        return read_servers(self.client, map(self._shards.ref, shards))

    def _confirm(self, shards: Iterable[int], servers: Servers) -> None:
        return self._durability.confirm_move(self.client, map(self._shards.ref, shards), servers)


def _has_told(reply: list[Any] | None) -> bool:
    """Whether a source has sent a transfer, or told that nothing of an id is left in it."""
    return bool(reply and (reply[0] or reply[2]))
