"""Resharding: steps of a move, and the number of shards that a queue needs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from celery_lowkiq.rules.leases import TAKEOVER_LEASES
from celery_lowkiq.rules.models import Layout, QueueSpec, ShardRef
from celery_lowkiq.rules.views import NodeReport

# Steps of a mover in one turn of a migration: decided from what it has read in each shard.
#
# In a migration, ids go from the shard of the former number of shards, their source, to the one of the new
# number. See docs/adr/0026-resharding.md.

#: Jobs that one turn sorts: what it sends at once delays other work.
TURN_JOBS = 1000
#: Shards of a turn: few, so that a transfer has many ids.
TURN_SHARDS = 16
#: Maximum number of turns over all shards: a turn has more of them in a queue with many shards.
MAX_TURNS_OF_ROUND = 24
#: Seconds of Redis's time that a turn takes at most; a longer one has waited for something else.
LONGEST_TURN = 0.25
#: Parts of the time that movers work: when nothing else keeps Redis busy, and at least.
LARGEST_SHARE, LEAST_SHARE = 0.7, 0.33
#: A request has waited when it takes WAITED times as long as the shortest one; on an idle Redis, one in ten
#: takes four times as long. REQUESTS is how many of the last ones count.
WAITED, REQUESTS = 6.0, 16
#: Ids of one transfer, and of one relay.
TRANSFER_IDS = 100
RELAY_IDS = 1000


class Phase(str, Enum):
    """The phases of a migration, in their order."""

    #: Workers may take the new shards.
    PREPARE = "prepare"
    #: Shards are closed, then opened under the new route.
    FLIP = "flip"
    #: Ids move.
    MOVE = "move"
    #: All have moved: shards get the new number as their route.
    SEAL = "seal"
    IDLE = "idle"


@dataclass(frozen=True)
class Migration:
    """The state of a queue's migration, as its own key has it."""

    gen: int
    phase: Phase
    layout: Layout

    @property
    def former(self) -> int:
        """The number of shards before."""
        assert self.layout.former is not None
        return self.layout.former

    @property
    def sources(self) -> range:
        """Indexes of the shards that ids leave."""
        return range(self.former)

    @property
    def shards(self) -> range:
        """Indexes of all shards."""
        return range(self.layout.count)

    def sealed(self, index: int) -> str:
        """The route of a shard after the migration."""
        return str(self.layout.shards) if index < self.layout.shards else RETIRED

    def leaves(self, index: int, job_id: str) -> bool:
        """True if an id that lies in a shard belongs to another one."""
        return self.layout.home(job_id) != index


#: Route of a shard that the new number does not have.
RETIRED = "retired"


@dataclass(frozen=True)
class ShardMoves:
    """State of a shard, as a mover reads it."""

    route: str
    gen: int
    #: Ids that wait to be sorted, those that are due first; ``waiting`` is the number of all of them.
    moving: tuple[str, ...] = ()
    waiting: int = 0
    #: Ids that were in processing when the shard was closed, and have not left.
    inflight: tuple[str, ...] = ()
    #: Shards to which transfers are on their way.
    pending: tuple[int, ...] = ()
    #: Sum of the shard's counts.
    counts: int = 0
    #: True if jobs that leave may be claimed here: the migration was paused.
    staying: bool = False
    #: The owner of a lease that another server gave, with epoch, counter and this server; '' without such a
    #: lease. It, or an unknown next one, may run jobs that the shard does not know because a failover has
    #: lost their claims.
    given_elsewhere: str = ""


@dataclass(frozen=True)
class Export:
    """Ids to be taken from one shard to another."""

    source: int
    shard: int
    ids: tuple[str, ...] = ()
    #: True if the counts of the source go with them.
    counts: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        """The source, and the shard where its ids go."""
        return self.source, self.shard


class UnresponsiveOwners:
    """Owners of ``ShardMoves.given_elsewhere`` that renew their leases no more, as a mover sees it."""

    def __init__(self, lease_seconds: float) -> None:
        self._wait = TAKEOVER_LEASES * lease_seconds
        #: By shard, an owner with its counter, and since when (monotonic) it is unchanged.
        self._seen: dict[int, tuple[str, float]] = {}

    def observed(self, index: int, owner: str, now: float) -> None:
        """Record the owner of a shard as it was read at ``now`` (monotonic)."""
        if not owner:
            self._seen.pop(index, None)
        elif self._seen.get(index, ("", 0.0))[0] != owner:
            self._seen[index] = owner, now

    def doubted(self, shards: Iterable[int] | None = None) -> None:
        """Watch shards, or all, from anew: in an outage of Redis, their owners cannot renew either."""
        for index in list(self._seen) if shards is None else shards:
            self._seen.pop(index, None)

    def unresponsive(self, index: int, now: float) -> str:
        """Return the owner of a shard if its lease has run out at ``now``; else ''."""
        owner, since = self._seen.get(index, ("", now))
        return owner if now >= since + self._wait else ""


@dataclass(frozen=True)
class Turn:
    """Ids that one turn of a mover makes claimable where they are, and ids that it exports."""

    relays: Mapping[int, tuple[str, ...]]
    exports: tuple[Export, ...]


def shards_of_turn(migration: Migration, number: int) -> range:
    """Return the shards of a turn, by its number: turns go round, and each has its part of the sources."""
    turns = turns_of_round(migration)
    return migration.shards[number % turns :: turns]


def turns_of_round(migration: Migration) -> int:
    """Return the number of turns after which each shard had one."""
    count = len(migration.shards)
    return -(-count // max(TURN_SHARDS, -(-count // MAX_TURNS_OF_ROUND)))


class Pace:
    """How much a mover works: all movers together take 70 % of the time that other work leaves of Redis.

    In the part of the time in which Redis is busy, that part of small requests has to wait.
    """

    def __init__(self) -> None:
        self._shortest = math.inf
        #: Part of the time in which others keep Redis busy, of late.
        self.busy: float = 0.0

    def asked(self, seconds: float) -> None:
        """Note how long a small request took that was sent after a pause."""
        self._shortest = min(seconds, self._shortest)
        waited = seconds > WAITED * self._shortest
        self.busy += (waited - self.busy) / REQUESTS

    def pause_after(self, seconds: float, movers: int) -> float:
        """Return the pause (s) of a mover after a turn that took ``seconds``, beside all others."""
        share = max(LEAST_SHARE, LARGEST_SHARE * (1 - self.busy))
        return min(seconds, LONGEST_TURN) * (movers / share - 1)


def pages_of(migration: Migration, shards: range) -> dict[int, int]:
    """Return how many ids to read in each shard of a turn: sources share it as if there were no others."""
    sources = sum(index < migration.former for index in shards)
    return {
        index: max(1, TURN_JOBS // (sources if index < migration.former else len(shards))) for index in shards
    }


def turn(migration: Migration, moves: Mapping[int, ShardMoves], strays: Mapping[int, Iterable[str]]) -> Turn:
    """Decide a turn. ``strays``: ids without a waiting job that were found in a shard and leave it.

    Ids that calls have brought come first: they wait for an answer of their source.
    """
    layout = migration.layout
    relays: dict[int, list[str]] = defaultdict(list)
    arriving: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    leaving: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    for index, found in moves.items():
        for shard in found.pending:
            leaving[index, shard].update({})
        for job_id in found.moving:
            home, source = layout.home(job_id), layout.former_home(job_id)
            if home != index:
                leaving[index, home][job_id] = None
            elif source is None:
                relays[index].append(job_id)
            else:
                arriving[source, index][job_id] = None
        for job_id in (*found.inflight, *strays.get(index, ())):
            if migration.leaves(index, job_id):
                leaving[index, layout.home(job_id)][job_id] = None
    pairs = dict.fromkeys((*arriving, *leaving))
    exports = tuple(
        Export(*pair, tuple(arriving[pair] | leaving[pair])[:TRANSFER_IDS]) for pair in sorted(pairs)
    )
    return Turn({index: tuple(ids[:RELAY_IDS]) for index, ids in relays.items()}, exports)


def paused_turn(
    migration: Migration, moves: Mapping[int, ShardMoves]
) -> tuple[dict[int, tuple[str, ...]], Turn]:
    """Decide a turn while the migration is paused: nothing leaves but ids that calls wait for.

    Returns with it, by shard, ids that become claimable in the shard that they will leave.
    """
    stays = {
        index: tuple(job_id for job_id in found.moving if migration.leaves(index, job_id))[:RELAY_IDS]
        for index, found in moves.items()
    }
    others = {
        index: replace(
            found,
            moving=tuple(job_id for job_id in found.moving if not migration.leaves(index, job_id)),
            inflight=(),
        )
        for index, found in moves.items()
    }
    return {index: ids for index, ids in stays.items() if ids}, turn(migration, others, {})


def has_sorted(migration: Migration, index: int, moves: ShardMoves) -> bool:
    """True if no job that leaves the shard waits or was in processing when it was closed.

    None comes back then: calls go elsewhere, and only those in processing can be restored.
    """
    return moves.waiting == len(moves.moving) and _shows_none_that_leaves(migration, index, moves)


def _shows_none_that_leaves(migration: Migration, index: int, moves: ShardMoves) -> bool:
    return (
        moves.gen == migration.gen
        and not moves.staying
        and not moves.given_elsewhere
        and not has_leavers(migration, index, moves)
    )


def has_leavers(migration: Migration, index: int, moves: ShardMoves) -> bool:
    """True if a job that leaves the shard was read there."""
    return any(migration.leaves(index, job_id) for job_id in (*moves.moving, *moves.inflight))


def is_finished(migration: Migration, index: int, moves: ShardMoves) -> bool:
    """True if a source that has been searched for strays has nothing left that leaves it."""
    return has_sorted(migration, index, moves) and not moves.pending and not _counts(migration, index, moves)


def has_come_back(migration: Migration, index: int, moves: ShardMoves) -> bool:
    """True if a failover has brought something back to a source that was finished.

    Calls of ids that stay may wait there meanwhile.
    """
    return (
        not _shows_none_that_leaves(migration, index, moves)
        or bool(moves.pending)
        or _counts(migration, index, moves)
    )


def last_export(migration: Migration, index: int, moves: ShardMoves) -> Export | None:
    """Return the export of the counts of a source that will be retired, after everything else has left."""
    if has_sorted(migration, index, moves) and not moves.pending and _counts(migration, index, moves):
        return Export(index, index % migration.layout.shards, counts=True)
    return None


def _counts(migration: Migration, index: int, moves: ShardMoves) -> bool:
    return index >= migration.layout.shards and moves.counts > 0


@dataclass(frozen=True)
class ShardProgress:
    """Remaining work of a migration in a shard, counted at one moment."""

    index: int
    #: A number of shards, ``24>48`` in the migration, ``closed``, or ``retired``.
    route: str
    #: Waiting jobs; ``moving``: those of them that no claim takes until a mover has sorted them.
    waiting: int
    moving: int
    #: Jobs in processing; ``in_flight``: ids that were in processing at the fence and have not left.
    processing: int
    in_flight: int
    #: Transfers on their way to other shards, and their bytes.
    transfers: int
    transfer_bytes: int
    #: In a pause, waiting jobs that leave the shard after it. Estimated when there are many.
    staying: int = 0


@dataclass(frozen=True)
class ReshardCost:
    """Estimated cost of a migration."""

    queue: str
    former: int
    shards: int
    #: Waiting and dead jobs; ``leaving``: those of them that change their shards.
    jobs: int
    leaving: int
    #: Memory of Redis that these use, with their payloads; each is sent to a mover once, and back.
    leaving_bytes: int
    seconds: float


#: Jobs that movers sort in a second. Measured with one mover on a busy machine with two cores; see the docs.
JOBS_PER_SECOND = 5000


def cost(queue: str, layout: Layout, jobs: int, memory: int) -> ReshardCost:
    """Estimate the cost of a migration; ``memory``: bytes of all that shards keep of ids."""
    assert layout.former is not None
    shared = min(layout.former, layout.shards) / math.lcm(layout.former, layout.shards)
    return ReshardCost(
        queue=queue,
        former=layout.former,
        shards=layout.shards,
        jobs=jobs,
        leaving=round(jobs * (1 - shared)),
        leaving_bytes=round(memory * (1 - shared)),
        seconds=jobs / JOBS_PER_SECOND,
    )


@dataclass(frozen=True)
class MigrationState:
    """A migration that is going on, with the counts of its shards. Times are Unix s of Redis's clock."""

    queue: str
    gen: int
    phase: Phase
    #: Number of shards before, and after.
    former: int
    shards: int
    #: None: Redis has lost it.
    began_at: float | None
    #: Since when it is paused; None: it is not.
    paused_since: float | None
    #: When the one before was aborted, which this one takes back; None: it takes back none.
    aborted_at: float | None
    #: All shards of both numbers, by index. Each was counted at its own moment.
    progress: tuple[ShardProgress, ...]

    @property
    def left(self) -> int:
        """Waiting jobs that are to be sorted; in a pause, about those that leave shards after it, too."""
        return sum(map(self.unsorted, self.progress))

    @property
    def moved(self) -> int:
        """Waiting jobs that were sorted, or that calls have brought to their own shards since."""
        return sum(shard.waiting for shard in self.progress) - self.left

    def unsorted(self, shard: ShardProgress) -> int:
        """Return the waiting jobs of a shard that are to be sorted: all of one that was not closed yet."""
        return shard.waiting if shard.route == str(self.former) else shard.moving + shard.staying


# Changes for a node when a queue is stored with another number of shards.


@dataclass(frozen=True)
class Resize:
    """A queue as it is stored now, and the shards to add to those of the node and to remove from them."""

    queue: QueueSpec
    added: tuple[ShardRef, ...]
    removed: tuple[ShardRef, ...]


def resize(queue: QueueSpec, route: str) -> Resize | None:
    """Return what a stored route changes for a node that serves ``queue``; None for no change.

    So does a route that is missing or foreign. It may be followed by a space and the phase of a migration.
    """
    layout = Layout.parse(route.partition(" ")[0])
    if layout is None or layout == queue.layout:
        return None
    stored = queue.with_layout(layout)
    before, after = queue.shard_refs(), stored.shard_refs()
    return Resize(stored, after[len(before) :], before[len(after) :])


def agreed(nodes: Sequence[NodeReport], queue: str) -> int | None:
    """Return the number of shards that the code of all living nodes declares; None if they do not agree."""
    found = {node.declared[queue] for node in nodes if node.alive and queue in node.declared}
    return found.pop() if len(found) == 1 else None


def migrating(routes: Mapping[str, str]) -> list[str]:
    """Return the queues whose route is followed by the phase of a migration."""
    return [queue for queue, route in routes.items() if " " in route]
