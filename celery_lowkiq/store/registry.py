"""The number of shards of a queue, which each push and acquire checks.

It is stored in the queue's own key, and each shard has a copy because a script reads one shard only. The
registry handles scripts that a shard without a copy, or with another number, refuses. The number that the
code declares is that of a new queue: the stored one applies to all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import (
    FormatMismatch,
    QueueMigrating,
    QueueResharded,
    ShardDamaged,
    ShardRepairing,
    StoreError,
    StoreUnavailable,
    other_format,
)
from celery_lowkiq.rules.models import Layout, QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Registered
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import FORMAT, queue_key, shard_keys
from celery_lowkiq.store.records import reads_replies
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.script import ScriptCall, load

#: Phases of a migration in which shards may refuse calls.
CLOSING_PHASES = (Phase.FLIP.value, Phase.MOVE.value, Phase.SEAL.value)
#: Number and begin of the pause of a queue that was never paused.
NO_PAUSE = (0, b"")
#: The mark of a shard's format from its first signature on (``lib/meta.lua``).
SIGNED = " signed"
#: Fields of ``meta`` that hold the number of shards.
LAYOUT_FIELDS = ("shards", "gen", "migration")
#: Continues the migration of a queue.
ContinueMigration = Callable[[QueueSpec], object]


class LastMigration(NamedTuple):
    """The last migration of a queue: the layout of its shards now, its number (0 without one), its route."""

    now: Layout
    gen: int
    route: bytes


@reads_replies
def open_shards(
    client: Client,
    queue: QueueSpec,
    shards: Sequence[ShardRef],
    repairs: Repairs,
    continue_migration: ContinueMigration,
) -> dict[ShardRef, StoreError]:
    """Make shards accept scripts with the layout of ``queue``; lost meta is repaired if the rest of the
    queue allows it. Returns the damage of the other shards, and the StoreUnavailable of those whose
    master is unreachable.

    Shards may be closed in a migration whose mover has died, so the caller continues it. Raises
    QueueResharded when another layout is stored, or when shards have another one while the master with
    the queue's own key is unreachable; FormatMismatch, StoreError.
    """
    stored = _registered_alike(client, queue)
    if stored.is_migrating:
        continue_migration(queue)
        return {}
    # 1, or 0 when the shard has jobs of another layout.
    written, refused = client.each(
        {
            shard: load("set_shard_count").call(
                shard_keys(shard), shards=stored.layout.route, pause=stored.pause, since=stored.since
            )
            for shard in shards
        }
    )
    for shard, is_written in written.items():
        if not is_written and (damaged := _unrestored(client, repairs, queue, shard, stored)):
            refused[shard] = damaged
    if refused and (_restarts_migration(client, queue, refused) or registered(client, queue) != stored):
        # A migration has begun or ended meanwhile.
        return open_shards(client, queue, shards, repairs, continue_migration)
    return refused


def _registered_alike(client: Client, queue: QueueSpec) -> Registered:
    try:
        stored = registered(client, queue)
    except StoreUnavailable:
        # Each shard checks the number of shards itself, so that a wrong one is refused, and not stored.
        if (known := _as_shards_say(client, queue).layout) != queue.layout:
            raise QueueResharded(queue.name, known) from None
        raise
    if stored.layout != queue.layout:
        raise QueueResharded(queue.name, stored.layout)
    return stored


def _restarts_migration(client: Client, queue: QueueSpec, refused: Mapping[ShardRef, StoreError]) -> bool:
    """Begin the queue's last migration again when a failover has lost what it did in one of these shards.

    Shards that lie on other masters than the queue's own key may be older than it.
    """
    damaged = [shard for shard, error in refused.items() if isinstance(error, ShardDamaged)]
    copies = client.commands(
        [("HMGET", shard_keys(shard)["meta"], "shards", "gen") for shard in damaged], readable=True
    )
    ((gen, route),) = client.commands([("HMGET", queue_key(queue.name), "gen", "migration")])
    layout = parse_layout(route)
    if layout is None:
        return False
    left_behind = [
        shard
        for shard, copy in zip(damaged, copies, strict=True)
        if copy and is_left_behind(layout, int(gen), shard.index, *copy)
    ]
    if not left_behind:
        return False
    return bool(client.call(restart_call(queue.name, int(gen), Phase.IDLE)))


def _unrestored(
    client: Client, repairs: Repairs, queue: QueueSpec, shard: ShardRef, stored: Registered
) -> ShardDamaged | None:
    """Repair the shard's number of shards; return the damage if that is impossible."""
    try:
        if repairs.rewrite_meta(queue, shard, stored):
            return None
    except ShardRepairing as error:
        return error
    (route,) = client.commands([("HGET", shard_keys(shard)["meta"], "shards")])
    copy = parse_layout(route)
    says = (
        f"meta says that the queue has {copy.route} shards" if copy else "meta does not say how many shards"
    )
    reason = f"{says}, its registry says {stored.layout.route}, and the ids in the shard decide nothing"
    return ShardDamaged(shard.queue, shard.index, reason)


@reads_replies
def as_stored(client: Client, queues: Sequence[QueueSpec]) -> list[QueueSpec]:
    """Return the queues with their stored numbers of shards, or as declared, in one round trip.

    As its shards say when the master with the key of a queue is unreachable. Raises FormatMismatch,
    StoreError.
    """
    found, _ = client.each_command({one.name: _stored_layout(one, "format") for one in queues})
    for name, stored in found.items():
        if any(stored):
            check_format(name, (stored[1] or b"").decode("latin-1"))
    return _with_layouts(client, queues, found)


@reads_replies
def as_known(client: Client, queues: Sequence[QueueSpec]) -> list[QueueSpec]:
    """Return the queues as :meth:`as_stored` does; as declared also when the key of a queue has the wrong
    type. Raises StoreError.
    """
    wanted = {queue.name: _stored_layout(queue) for queue in queues}
    found, _ = client.each_command(wanted, readable=True)
    return _with_layouts(client, queues, found)


def _with_layouts(client: Client, queues: Sequence[QueueSpec], found: Mapping[str, Any]) -> list[QueueSpec]:
    return [
        queue.with_layout(parse_layout((found[queue.name] or [None])[0]) or queue.layout)
        if queue.name in found
        else _as_shards_say(client, queue)
        for queue in queues
    ]


def _as_shards_say(client: Client, queue: QueueSpec) -> QueueSpec:
    copies, _ = _copies(client, queue, LAYOUT_FIELDS)
    layout = _last_migration(queue, copies).now
    if layout.count > queue.layout.count:
        # The other shards may be in a later migration.
        return _as_shards_say(client, queue.with_layout(layout))
    return queue.with_layout(layout)


@reads_replies
def at_rest(client: Client, queue: QueueSpec) -> QueueSpec:
    """Return the queue as it is stored. Raises QueueMigrating while its jobs move, StoreError."""
    (stored,) = as_stored(client, [queue])
    if stored.former_shards is not None:
        raise QueueMigrating(queue.name, stored.layout)
    return stored


@reads_replies
def register(
    client: Client,
    queue: QueueSpec,
    expected: str = "",
    last: LastMigration | None = None,
    last_pause: tuple[int, bytes] = NO_PAUSE,
) -> Registered:
    """Write the number of shards if none, or ``expected``, is stored. Returns what is stored then.

    ``last``: migration of the shards; ``last_pause``: that they have followed.
    Raises FormatMismatch, StoreError.
    """
    call = load("register").call(
        {"queue": queue_key(queue.name)},
        format=FORMAT,
        shards=queue.layout.route,
        expected=expected,
        gen=last.gen if last else 0,
        migration=last.route if last else "",
        pause=last_pause[0],
        since=last_pause[1],
    )
    stored_format, *stored = (value.decode() for value in client.call(call))
    check_format(queue.name, stored_format)
    route, pause, since, phase = stored
    layout = Layout.parse(route)
    if layout is None:
        raise StoreError(f"queue {queue.name!r} is stored with {route!r} shards: expected a number")
    return Registered(layout, pause, since, is_migrating=phase in CLOSING_PHASES)


@reads_replies
def registered(client: Client, queue: QueueSpec) -> Registered:
    """Register the queue if it is not: a new one as declared. One whose own key was lost, or has lost its
    last migration or pause, is registered as its shards are. Raises FormatMismatch, StoreError.

    Shards whose master is unreachable are left out, unless the queue's own key is missing.
    """
    copies, errors = _copies(client, queue, (*LAYOUT_FIELDS, "format", "queue_pause", "queue_paused"))
    if errors and client.commands([("EXISTS", queue_key(queue.name))]) == [0]:
        raise errors[0]
    for route, _, _, stored_format, *_ in copies:
        if route:
            check_format(queue.name, (stored_format or b"").decode("latin-1").removesuffix(SIGNED))
    last = _last_migration(queue, [copy[:3] for copy in copies])
    if last.now.count > queue.layout.count:
        # The other shards may be in a later migration.
        return registered(client, queue.with_layout(last.now))
    pauses = [(int(pause or 0), since or b"") for *_, pause, since in copies]
    return register(client, queue.with_layout(last.now), last=last, last_pause=max(pauses, default=NO_PAUSE))


def _copies(client: Client, queue: QueueSpec, fields: Sequence[str]) -> tuple[list[Any], list[StoreError]]:
    """Return fields of meta of the shards that have it, and the errors of unreachable masters."""
    keys = [shard_keys(shard)["meta"] for shard in queue.shard_refs()]
    found, errors = client.each_command({key: ("HMGET", key, *fields) for key in keys}, readable=True)
    return list(filter(None, found.values())), list(errors.values())


def restart_call(queue: str, gen: int, phase: Phase) -> ScriptCall:
    """Return the script call that begins migration ``gen``, in this phase, once more."""
    keys = {"queue": queue_key(queue)}
    return load("restart_migration").call(keys, gen=gen, phase=phase.value)


def _stored_layout(queue: QueueSpec, *fields: str) -> tuple[str, ...]:
    return ("HMGET", queue_key(queue.name), "shards", *fields)


def parse_layout(stored: bytes | None) -> Layout | None:
    """Parse what a shard or queue stores; None for nothing, and for foreign data."""
    return Layout.parse((stored or b"").decode("latin-1"))


def _last_migration(queue: QueueSpec, copies: Sequence[Sequence[bytes | None]]) -> LastMigration:
    """Return the last migration of a queue, by the copies of its shards."""
    gen = max((int(gen or 0) for _, gen, _ in copies), default=0)
    last = [(route, migration) for route, number, migration in copies if int(number or 0) == gen]
    found = {_layout_of(route, migration) for route, migration in last} - {None}
    found = {layout for layout in found if layout and layout.former} or found
    # A caller may remember a migration of which a Redis without data knows nothing.
    now = (found.pop() if len(found) == 1 else None) or Layout(queue.shards)
    return LastMigration(now, gen, next((route for _, route in last if route), b""))


def _layout_of(route: bytes | None, migration: bytes | None) -> Layout | None:
    """Return the layout that a shard reports: a removed one knows the number that its queue has since."""
    if route == b"retired":
        ended = parse_layout(migration)
        return ended and Layout(ended.shards)
    return parse_layout(migration if route == b"closed" else route)


def is_left_behind(last: Layout, gen: int, index: int, route: bytes | None, joined: bytes | None) -> bool:
    """True if a shard of the last migration, of number ``gen``, has not ended it, or not begun it.

    ``route``: of the shard; ``joined``: the number of its last migration, which may be any earlier one.
    """
    told = (route or b"").decode("latin-1")
    if told == "closed" or int(joined or 0) == gen:
        return told in ("closed", last.route)
    return index < last.count and int(joined or 0) < gen and Layout.parse(told) is not None


def check_format(queue: str, stored: str) -> None:
    """Check the storage format of a queue's own key. Raises FormatMismatch."""
    if stored != str(FORMAT):
        raise FormatMismatch(other_format(f"queue {queue!r}", stored, FORMAT))
