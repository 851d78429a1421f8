"""Lua scripts as callables with named keys and arguments.

The header of a script is its declaration. ``-- KEYS: lease due`` and ``-- ARGV: owner epoch [id payload]...``
become Lua locals of these names; Python passes values by the same names. ``@waiting`` stands for a group of
keys (see KEY_GROUPS). ``-- USES: time payloads.change`` puts these libraries of ``lib/`` in front, each after
those that it uses itself: ``time.lua`` before its parts, and of ``payloads.lua`` what follows the line
``-- PART: change``. ``-- FLAGS: allow-oom`` becomes the shebang line where the server knows one.
``-- ROLE: worker`` names the roles in Redis whose rights it needs (acl.py).
Script text comes from these files only.

A further line ``-- USES:`` in the code begins another part of the script, and puts these libraries there. A
call that returns before does not pay for them. A part whose code may go on to the next one must not write.

Redis does not roll back, so each part first touches the keys that no part before it names: a key of another
type is an error before anything is written. A key with a question mark is left to the script, to touch when
it needs it; after a group, ``?`` leaves all of its keys to the script, and ``!`` none.
``-- KEYS: [lease]...`` is a key of each of many shards or queues, which the script reads from KEYS, and
touches itself; ``[nodes queue]...`` are two keys of each. POLICY KEYS are sent only for queues with a policy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, NamedTuple, Protocol, TypeAlias

from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.store.keys import KEY_GROUPS, KEY_TYPES, ShardKeys

#: Roles whose scripts a worker runs as soon as it starts: 26 with 300 KB, and 35 ms of work for Redis.
OF_WORKERS = frozenset({"caller", "worker"})
#: Cheap commands that fail on a key of another type.
PROBES = {"hash": "HLEN", "zset": "ZCARD"}

Value: TypeAlias = str | bytes | int | float


class Keys(Protocol):
    """Keys by the names that headers use."""

    def __getitem__(self, name: str, /) -> str: ...


class ScriptCall(NamedTuple):
    """One EVALSHA, ready to be sent."""

    script: Script
    keys: tuple[str, ...]
    values: tuple[Value, ...]

    def with_prefix(self, prefix: str) -> ScriptCall:
        """Return the call with a prefix in front of its keys and of its channel."""
        keys = _with_prefix(prefix, self.keys)
        at, values = self.script.place_of_channel, self.values
        if at is not None:
            values = (*values[:at], prefix + str(values[at]), *values[at + 1 :])
        return ScriptCall(self.script, keys, values)


@lru_cache(maxsize=4096)
def _with_prefix(prefix: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Cached because each script uses the same keys of a shard."""
    return tuple(prefix + key for key in keys)


@dataclass(frozen=True, eq=False)
class Script:
    """A Lua file, bound by the names in its header."""

    name: str
    body: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: str
    #: Number of keys, the last ones, that are sent only with a policy.
    policy_keys: int = 0
    #: Names of the keys that the script gets of each of many shards or queues.
    repeated_keys: tuple[str, ...] = ()
    #: Roles in Redis that need it (acl.py).
    roles: tuple[str, ...] = ()

    def call_many(self, keys: Sequence[str], rest: Sequence[Value] = (), **args: Value) -> ScriptCall:
        """Bind ``keys``, the ``repeated_keys`` of each shard or queue; otherwise as :meth:`call`."""
        if not self.repeated_keys:
            raise TypeError(f"{self.name}.lua takes its keys by name")
        return self.call({}, rest, **args)._replace(keys=tuple(keys))

    def call(self, keys: Keys, rest: Sequence[Value] = (), **args: Value) -> ScriptCall:
        """Bind keys and arguments by name; ``rest`` fills the repeated part of ARGV.

        Raises TypeError when the names are not those of the header.
        """
        if args.keys() != self._arg_names:
            raise TypeError(f"{self.name}.lua takes {self.args}, got {tuple(args)}")
        names = self.keys if args.get("policy") else self._keys_without_policy
        if type(keys) is ShardKeys:
            bound = keys.bound.get(names) or keys.bind(names)
        else:
            bound = tuple(keys[name] for name in names)
        return ScriptCall(self, bound, (*map(args.__getitem__, self.args), *rest))

    def text(self, flags: bool) -> str:
        """Return the source, with the shebang line when the server supports script ``flags``."""
        return f"#!lua flags={self.flags}\n{self.body}" if flags and self.flags else self.body

    @cached_property
    def _arg_names(self) -> frozenset[str]:
        return frozenset(self.args)

    @cached_property
    def place_of_channel(self) -> int | None:
        """Place among the arguments of the channel that the script publishes to."""
        return self.args.index("channel") if "channel" in self._arg_names else None

    @cached_property
    def _keys_without_policy(self) -> tuple[str, ...]:
        return self.keys[: len(self.keys) - self.policy_keys]

    @cached_property
    def shas(self) -> tuple[str, str]:
        """The SHA1 of the source without and with flags."""
        return sha_of(self.text(False)), sha_of(self.text(True))


def sha_of(text: str) -> str:
    """Return the name that Redis gives to a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def lua_files() -> dict[str, Any]:
    """Return the Lua files by name, such as ``push.lua`` of a script and ``lib/time.lua`` of a library."""
    folder = resources.files("celery_lowkiq.store").joinpath("lua")
    found = {f"lib/{file.name}": file for file in folder.joinpath("lib").iterdir()}
    found |= {file.name: file for file in folder.iterdir()}
    return {name: file for name, file in found.items() if name.endswith(".lua")}


def _read(name: str) -> str:
    text: str = lua_files()[name].read_text("utf-8")
    return text


def library(name: str) -> str:
    """Return the text of ``lib/<name>.lua`` before its first part, or of a part, ``<file>.<part>``."""
    file, _, part = name.partition(".")
    return _parts_of_library(_read(f"lib/{file}.lua"))[part]


@lru_cache(maxsize=64)
def _parts_of_library(text: str) -> dict[str, str]:
    """Return the parts by their names; ``""``: what precedes them."""
    first, *parts = re.split(r"^-- PART: (\w+)\n", text, flags=re.MULTILINE)
    return {"": first, **dict(zip(parts[::2], parts[1::2], strict=True))}


def header(source: str, field: str) -> str:
    """Return the value of ``-- <field>:`` in the header of a Lua file."""
    found = re.search(rf"^-- {field}: *(.*)$", source, re.MULTILINE)
    return found.group(1) if found else ""


def declared_keys(source: str, field: str = "KEYS") -> tuple[str, ...]:
    """Return the keys of a header but the repeated one, with question marks and expanded groups."""
    found: list[str] = []
    for word in header(source, field).partition("[")[0].split():
        group = KEY_GROUPS.get(word[1:].rstrip("?!")) if word[0] == "@" else None
        if group is None:
            found.append(word)
        elif word[-1] in "?!":
            found += (key.rstrip("?") + word[-1].strip("!") for key in group)
        else:
            found += group
    return tuple(found)


def libraries(source: str) -> tuple[str, ...]:
    """Return the libraries that a source uses, each after those that it uses itself."""

    def used(text: str) -> Iterator[str]:
        for name in " ".join(re.findall(r"^-- USES: *(.*)$", text, re.MULTILINE)).split():
            yield from used(library(name))
            yield name

    return tuple(dict.fromkeys(used(source)))


def _names(kind: str, names: Sequence[str]) -> str:
    values = ", ".join(f"{kind}[{position}]" for position in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {values}\n" if names else ""


def _parts(source: str) -> list[str]:
    """Split a script before each further line USES, and put the libraries of each part in front of it."""
    head, *parts = re.split(r"^(?=-- USES:)", source, flags=re.MULTILINE)
    parts[0] = head + parts[0]
    used: dict[str, None] = {}
    found = []
    for part in parts:
        new = [name for name in libraries(part) if name not in used]
        used |= dict.fromkeys(new)
        found.append("".join(map(library, new)) + part)
    return found


def _with_probes(parts: Sequence[str], keys: Sequence[str]) -> str:
    """Join the parts, each behind probes of the keys that only it and later ones name."""
    body, left = "", list(keys)
    for part in parts:
        code = re.sub("--.*", "", part)
        named = [key for key in left if part is parts[-1] or re.search(rf"\b{key}\b", code)]
        left = [key for key in left if key not in named]
        body += "".join(f"redis.call('{PROBES[KEY_TYPES[key]]}', {key})\n" for key in named) + part
    return body


@cache
def load(name: str) -> Script:
    source = _read(f"{name}.lua")
    of_policies = declared_keys(source, "POLICY KEYS")
    declared = declared_keys(source) + of_policies
    keys = tuple(key.rstrip("?") for key in declared)
    args = tuple(header(source, "ARGV").partition("[")[0].split())
    binding = _names("KEYS", keys) + _names("ARGV", args) + f"local rest = {len(args) + 1}\n"
    body = binding + _with_probes(_parts(source), [key for key in declared if key in keys])
    repeated = header(source, "KEYS").partition("[")[2].partition("]")[0]
    return Script(
        name,
        body,
        keys,
        args,
        header(source, "FLAGS"),
        len(of_policies),
        tuple(repeated.split()),
        tuple(header(source, "ROLE").split()),
    )


def script_names() -> list[str]:
    return [name.removesuffix(".lua") for name in lua_files() if "/" not in name]


def load_all() -> None:
    """Load all scripts: what runs for long needs neither descriptors for their files later, nor the files,
    which an upgrade replaces.
    """
    for name in script_names():
        load(name)


@cache
def scripts_of_workers() -> frozenset[Script]:
    """Return the scripts that a worker runs as soon as it starts."""
    return frozenset(script for script in map(load, script_names()) if OF_WORKERS & set(script.roles))
