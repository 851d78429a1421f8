"""Lua scripts as callables with named keys and arguments.

A script's header is its declaration: ``-- KEYS: lease due`` and ``-- ARGV: owner epoch [id payload]...``
become Lua locals of these names, and Python passes values by the same names. ``-- USES: time bag`` puts
``lib/time.lua`` and ``lib/bag.lua`` in front; ``-- FLAGS: allow-oom`` becomes the shebang line where the
server knows one (Redis 7). Nothing but these files ever becomes script text.

Redis does not roll back, so every script first touches each of its keys: one of another type is an error
before anything was written. A key with a question mark is left to the script, to touch when it needs it.
Keys that only policies use are POLICY KEYS: a queue without a policy does not send them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol, TypeAlias

from .keys import KEY_TYPES

#: Packages of the store with Lua files beside their Python. The name of a script is unique among them.
FOLDERS = ("jobs", "leases", "repairs", "inspect", "admin", "tracking")
#: What fails on a key of another type, at the cost of a look.
PROBES = {"hash": "HLEN", "zset": "ZCARD"}

Value: TypeAlias = str | bytes | int | float


class Keys(Protocol):
    """Keys by the names that headers use."""

    def __getitem__(self, name: str, /) -> str: ...


@dataclass(frozen=True)
class Call:
    """One EVALSHA, ready to be sent."""

    script: Script
    keys: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Script:
    """A Lua file, bound by the names in its header."""

    name: str
    body: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    flags: str
    #: How many of the keys, the last ones, go only with a policy.
    policy_keys: int = 0

    def call(self, keys: Keys, rest: Sequence[Value] = (), **args: Value) -> Call:
        """Bind keys and arguments by name; ``rest`` fills the repeated part of ARGV.

        Raises TypeError when the names are not those of the header.
        """
        if len(args) != len(self.args) or not all(name in args for name in self.args):
            raise TypeError(f"{self.name}.lua takes {self.args}, got {tuple(args)}")
        unused = 0 if args.get("policy") else self.policy_keys
        names = self.keys[: len(self.keys) - unused]
        return Call(self, tuple(keys[name] for name in names), (*(args[name] for name in self.args), *rest))

    def text(self, flags: bool) -> str:
        """Source as sent to a server that knows script flags, or one that does not."""
        return f"#!lua flags={self.flags}\n{self.body}" if flags and self.flags else self.body

    def sha(self, flags: bool) -> str:
        """Name under which the server caches ``text(flags)``."""
        return _sha(self, flags)


@cache
def _sha(script: Script, flags: bool) -> str:
    return hashlib.sha1(script.text(flags).encode(), usedforsecurity=False).hexdigest()


@cache
def lua_files() -> dict[str, Any]:
    """The Lua files of the store by name: ``push.lua`` of a script, ``lib/time.lua`` of a library."""
    store = resources.files("celery_lowkiq.store")
    found = {f"lib/{file.name}": file for file in store.joinpath("scripts").joinpath("lib").iterdir()}
    for folder in FOLDERS:
        found |= {file.name: file for file in store.joinpath(folder).iterdir()}
    return {name: file for name, file in found.items() if name.endswith(".lua")}


def _read(name: str) -> str:
    text: str = lua_files()[name].read_text("utf-8")
    return text


def library(name: str) -> str:
    """Text of ``lib/<name>.lua``."""
    return _read(f"lib/{name}.lua")


def _header(source: str, field: str) -> str:
    found = re.search(rf"^-- {field}: *(.*)$", source, re.MULTILINE)
    return found.group(1) if found else ""


def _names(kind: str, names: Sequence[str]) -> str:
    values = ", ".join(f"{kind}[{position}]" for position in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {values}\n" if names else ""


def _probes(keys: Sequence[str]) -> str:
    return "".join(f"redis.call('{PROBES[KEY_TYPES[key]]}', {key})\n" for key in keys)


@cache
def load(name: str) -> Script:
    """The script of ``<name>.lua``."""
    source = _read(f"{name}.lua")
    of_policies = _header(source, "POLICY KEYS").split()
    declared = _header(source, "KEYS").split() + of_policies
    keys = tuple(key.rstrip("?") for key in declared)
    args = tuple(_header(source, "ARGV").partition("[")[0].split())
    libraries = "".join(map(library, _header(source, "USES").split()))
    binding = _names("KEYS", keys) + _names("ARGV", args) + f"local rest = {len(args) + 1}\n"
    return Script(
        name,
        binding + _probes([key for key in declared if key in keys]) + libraries + source,
        keys,
        args,
        _header(source, "FLAGS"),
        len(of_policies),
    )
