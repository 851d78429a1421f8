"""Rights in Redis: the ACL rules of a role, made from the scripts with its name and from its own commands.

Scripts run with the rights of their caller. So a role has the commands of its scripts, and may use them on
the keys of its scripts by itself: what Redis cannot keep apart is in ``docs/permissions.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.store.keys import (
    KEY_TYPES,
    MORGUE_KEYS,
    SHARD_KEYS,
    TRACKER_KEYS,
    channel_pattern,
    key_pattern,
    literal,
)
from celery_lowkiq.store.script import Script, load, script_names

RoleName = Literal["caller", "worker", "reader", "operator"]


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Commands of a connection.
CONNECTION = frozenset({"AUTH", "HELLO", "PING", "SELECT", "CLIENT|SETNAME"})
#: Commands of ``SCRIPT LOAD`` and EVALSHA.
SCRIPTS = frozenset({"EVALSHA", "SCRIPT|LOAD"})
#: Redis version from which a command exists.
SINCE = {"CLIENT|SETINFO": (7, 2), "WAITAOF": (7, 2)}
#: Before Redis 7, these cannot be permitted by a subcommand.
WHOLE_BEFORE_7 = {"SCRIPT|LOAD": "SCRIPT", "CLUSTER|SLOTS": "CLUSTER"}
#: Commands of scripts that change something.
WRITES = _names(
    "DEL EXPIRE HDEL HINCRBY HSET HSETNX PERSIST PEXPIRE PUBLISH RENAME ZADD ZINCRBY ZREM ZREMRANGEBYLEX "
    "ZREMRANGEBYRANK ZREMRANGEBYSCORE ZUNIONSTORE"
)
ON_CLUSTER = frozenset({"ASKING", "CLUSTER|SLOTS"})
_CALL = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
#: Commands that a script chooses while it runs.
_CHOSEN = re.compile(r"'([HZ](?:SCAN|LEN|CARD))'")


@dataclass(frozen=True)
class Role:
    """Needs of a role: scripts, commands that it sends itself with the names of their keys, and channels.

    ``of``: the words after ROLE in the headers of its scripts. ``reads_only``: none of its scripts writes,
    though they may have libraries that can. From Redis 7: ``apart``, keys with all commands that the role
    has for them, and ``access``, keys that its scripts only read (R) or only write (W).
    """

    of: frozenset[str]
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    reads_only: bool = False
    apart: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()
    access: Mapping[str, Literal["R", "W"]] = field(default_factory=dict)

    @property
    def scripts(self) -> frozenset[str]:
        return frozenset(name for name in script_names() if self.of.intersection(load(name).roles))

    def with_(self, *others: Role) -> Role:
        """Return this role and others as one."""
        found = (self, *others)
        commands: dict[str, tuple[str, ...]] = {}
        for role in found:
            for command, keys in role.commands.items():
                commands[command] = tuple(dict.fromkeys((*commands.get(command, ()), *keys)))
        channels = tuple(dict.fromkeys(name for role in found for name in role.channels))
        return Role(frozenset().union(*(role.of for role in found)), commands, channels)


_SHARD = tuple(SHARD_KEYS)
_TRACKERS = (*TRACKER_KEYS, "trackers")

_READS = Role(
    frozenset({"reader"}),
    {
        "INFO": (),
        "TIME": (),
        "EXISTS": _SHARD,
        "HEXISTS": _SHARD,
        "HGET": (*_SHARD, "queue", "failures", "tracker"),
        "HGETALL": ("failures",),
        "HMGET": (*_SHARD, "queue", "history", "report", "tokens", "tracker"),
        "HVALS": ("history",),
        "MEMORY|USAGE": _SHARD,
        "SUBSCRIBE": (),
        "UNSUBSCRIBE": (),
        "ZCARD": _SHARD,
        "ZCOUNT": _SHARD,
        "ZMSCORE": _SHARD,
        "ZRANGE": _SHARD,
        "ZRANGEBYLEX": _SHARD,
        "ZREVRANGE": ("reports",),
        "ZREVRANGEBYSCORE": ("trackers",),
        "ZSCAN": _SHARD,
        "ZSCORE": _SHARD,
    },
    ("tracked",),
)
_CALLER = Role(
    frozenset({"caller"}),
    {
        "HGET": ("meta", "queue", "senders", "tracker"),
        "HMGET": ("meta", "queue", "tracker"),
        "SUBSCRIBE": (),
        "UNSUBSCRIBE": (),
        "WAIT": (),
        "WAITAOF": (),
        "HINCRBY": ("meta",),
        "ZADD": ("trackers",),
        "ZREMRANGEBYRANK": ("trackers",),
        "ZREM": ("calls", "trackers"),
    },
    ("pushed", "tracked"),
    # A queue without jobs takes another number of shards.
    apart=((_names("claimed dead"), _names("ZCARD")),),
    access={"errors": "W", "tries": "W", "paused": "R", "processing": "R", "inflight": "R"},
)
#: Else a right to delete other keys would be one to delete the audit log.
_AUDIT = (_names("audit"), _names("XADD XREVRANGE"))
_AUDITS = Role(frozenset(), {"XREVRANGE": ("audit",)})
_READER = replace(_READS.with_(_AUDITS), reads_only=True, apart=(_AUDIT,))
_ACTS = _READS.with_(_CALLER, Role(frozenset({"operator"})))
_WORKER = _ACTS.with_(
    Role(
        frozenset({"worker"}),
        {
            "HDEL": ("nodes",),
            "DEL": ("report",),
            "ZREM": ("reports",),
            "HSETNX": ("ticket",),
            "EXPIRE": ("ticket",),
            "HGET": ("ticket",),
        },
    )
)
#: Who needs what. The header of a script has the roles that need least of those that run it. A worker acts on
#: ``celery control``, as an operator, but does not reach the audit log.
ROLES: dict[RoleName, Role] = {
    "caller": _CALLER,
    "worker": _WORKER,
    "reader": _READER,
    "operator": replace(_ACTS.with_(_AUDITS, Role(frozenset(), {"XADD": ("audit",)})), apart=(_AUDIT,)),
}


class _Rights(NamedTuple):
    """Commands, and the keys on which they are permitted: to read, to write, or both."""

    keys: frozenset[str]
    commands: frozenset[str]
    access: Mapping[str, str] = MappingProxyType({})

    def words(self, queues: Sequence[str | None], start: str) -> tuple[list[str], list[str]]:
        """Return the patterns of the keys, each after ``start``, and the commands."""
        patterns = dict.fromkeys(
            f"{f'%{self.access[key]}' if key in self.access else ''}~{start}{key_pattern(key, queue)}"
            for key in sorted(self.keys)
            for queue in queues
        )
        return [*patterns], sorted(f"+{command.lower()}" for command in self.commands)


def rules(
    role: RoleName,
    queues: Iterable[str] = (),
    version: tuple[int, int] = (7, 2),
    cluster: bool = False,
    prefix: str = "",
    trackers: bool = True,
) -> list[str]:
    """Return the words of ``ACL SETUSER`` for a role, without a password.

    ``queues``: only these; none: all. ``version``: of Redis; a Valkey is a Redis 7.2. ``prefix``: of
    keys and channels. ``trackers``: whether the role reaches trackers. Raises InvalidCall for
    a role that does not exist.
    """
    if role not in ROLES:
        raise InvalidCall(f"role={role!r} is invalid: expected one of {', '.join(get_args(RoleName))}")
    names, start = tuple(queues) or (None,), literal(prefix)
    found, without = ROLES[role], frozenset() if trackers else frozenset(_TRACKERS)
    rights = _Rights(keys_of(role) - without, frozenset(_permitted(role, version, cluster)))
    root, *others = _apart(found, rights) if version >= (7, 0) else [rights]
    keys, commands = root.words(names, start)
    channels = dict.fromkeys(
        f"&{start}{channel_pattern(name, queue)}"
        for name in found.channels
        if name not in without
        for queue in names
    )
    selectors = [" ".join(chain(*one.words(names, start))) for one in others]
    return [
        "on",
        "resetkeys",
        *keys,
        "resetchannels",
        *channels,
        "-@all",
        *commands,
        *(["clearselectors"] if selectors else []),
        *(word for text in selectors for word in f"({text})".split()),
    ]


def _apart(role: Role, rights: _Rights) -> list[_Rights]:
    """Return the rights of a role without those that it has apart, and those."""
    reached, permitted = rights.keys, rights.commands
    others = [_Rights(keys, commands & permitted) for keys, commands in role.apart]
    if role.access:
        # EVALSHA needs reads and writes of all keys of a script, each command in it for its own.
        others.append(_Rights(reached, _names("EVALSHA")))
        permitted -= {"EVALSHA"}
    for keys, commands in role.apart:
        reached -= keys
        permitted -= commands - _script_commands(role)
    return [_Rights(reached, permitted, role.access), *others]


def keys_of(role: RoleName) -> frozenset[str]:
    found = ROLES[role]
    of_commands = (key for keys in found.commands.values() for key in keys)
    return frozenset().union(of_commands, *(_keys(load(name)) for name in found.scripts))


def commands_of(role: RoleName) -> frozenset[str]:
    """Return the commands of a role, also those that its scripts call."""
    found = ROLES[role]
    scripts = _script_commands(found)
    connection = CONNECTION | SCRIPTS | {"CLIENT|SETINFO"}
    if found.reads_only:
        scripts -= WRITES
    return scripts | found.commands.keys() | connection


def _script_commands(role: Role) -> frozenset[str]:
    return frozenset[str]().union(*(script_commands(name) for name in role.scripts))


@cache
def script_commands(name: str) -> frozenset[str]:
    """Return the commands that a script calls, with those of its libraries."""
    body = re.sub("--[^\n]*", "", load(name).body)
    found = frozenset(_CALL.findall(body))
    # Some calls have a command in a variable.
    chosen = _CHOSEN.findall(body) if re.search(r"redis\.p?call\(\s*[a-z]", body) else ()
    probes = ("HLEN", "ZCARD") if "probe" in load(name).args else ()
    return found.union(chosen, probes)


def _permitted(role: RoleName, version: tuple[int, int], cluster: bool) -> set[str]:
    commands = commands_of(role) | (ON_CLUSTER if cluster else frozenset())
    known = {command for command in commands if version >= SINCE.get(command, (0, 0))}
    return {WHOLE_BEFORE_7.get(command, command) if version < (7, 0) else command for command in known}


def _keys(script: Script) -> frozenset[str]:
    """Names of the keys of a script; under other names, it handles all that these may stand for."""
    found = {*script.keys, *script.repeated_keys}
    if "index" in found:
        any_type = script.name == "delete_wrong_type"
        found |= {name for name, kind in SHARD_KEYS.items() if any_type or kind == "zset"}
    if "records" in found:
        found |= {"jobs", *MORGUE_KEYS.values()}
    return frozenset(found - {"index", "records"}) & (KEY_TYPES.keys() | {"trackers", "ticket", "audit"})
