"""Names in Lua scripts that are neither locals nor what Redis provides: a typo is nil, and only at run time.

Lua's own compiler resolves the names. Each access to a global is one instruction of its bytecode.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lupa import lua51

#: What scripts may use of the globals that Redis 6.2 and later provide.
ALLOWED = frozenset(
    {
        "ARGV",
        "KEYS",
        "assert",
        "cjson",
        "cmsgpack",
        "error",
        "ipairs",
        "math",
        "next",
        "pairs",
        "pcall",
        "redis",
        "select",
        "string",
        "table",
        "tonumber",
        "type",
        "unpack",
    }
)
HEADER_BYTES = 12
GETGLOBAL, SETGLOBAL = 5, 7
NIL, BOOLEAN, NUMBER, STRING = 0, 1, 3, 4


class Access(NamedTuple):
    """One access to a global, at a line of the chunk."""

    line: int
    name: str
    writes: bool


def undefined(text: bytes) -> list[Access]:
    """Globals that a chunk reads without Redis's providing them, or writes. Raises LuaSyntaxError."""
    runtime = lua51.LuaRuntime(encoding=None)
    compile_ = runtime.eval(b"function(text) return string.dump(assert(loadstring(text))) end")
    found = _Bytecode(compile_(text)).accesses()
    return [access for access in found if access.writes or access.name not in ALLOWED]


class _Bytecode:
    """A chunk of Lua 5.1, as ``string.dump`` writes it: 4-byte ints, 8-byte sizes and numbers."""

    def __init__(self, code: bytes) -> None:
        assert code[:5] == b"\x1bLua\x51", "the format of another Lua"
        self._code = code
        self._at = HEADER_BYTES

    def accesses(self) -> Iterator[Access]:
        """Those of one function, and of the functions within it."""
        self._string()
        self._skip(4 + 4 + 4)  # lines; upvalues, parameters, varargs, stack
        instructions = [self._int() for _ in range(self._int())]
        constants = [self._constant() for _ in range(self._int())]
        for _ in range(self._int()):
            yield from self.accesses()
        lines = [self._int() for _ in range(self._int())]
        for _ in range(self._int()):
            self._string()
            self._skip(4 + 4)
        for _ in range(self._int()):
            self._string()
        for line, instruction in zip(lines, instructions, strict=True):
            operation = instruction & 0x3F
            if operation in (GETGLOBAL, SETGLOBAL):
                name = constants[instruction >> 14].rstrip(b"\0").decode()
                yield Access(line, name, operation == SETGLOBAL)

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._code[self._at - size : self._at]

    def _skip(self, size: int) -> None:
        self._take(size)

    def _int(self) -> int:
        (value,) = struct.unpack("<I", self._take(4))
        return int(value)

    def _string(self) -> bytes:
        (size,) = struct.unpack("<Q", self._take(8))
        return self._take(size)

    def _constant(self) -> bytes:
        kind = self._take(1)[0]
        if kind == STRING:
            return self._string()
        return self._take({NIL: 0, BOOLEAN: 1, NUMBER: 8}[kind])
