"""Replies of Redis as values, and changed ones."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.mutators import ODD_BYTES, ODD_VALUES, changed_bytes, changed_value

#: What a reply, or a part of one, is replaced by.
ODD_REPLIES = (
    *(
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$0\r\n\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b":-1\r\n",
        b":%d\r\n" % 2**63,
    ),
    *(
        b":99999999999999999999\r\n",
        b":x\r\n",
        b"$5\r\nab\r\n",
        b"$1000000000\r\n",
        b"$-2\r\n",
        b"$x\r\n",
        b"*1000\r\n",
    ),
    *(
        b"*2\r\n",
        b"*-5\r\n",
        b"*x\r\n",
        b"*1\r\n" * 2000,
        b"*1\r\n" * 100_000 + b":1\r\n",
        b"-ERR x\r\n",
        b"-LOADING x\r\n",
        b"-MOVED 1 127.0.0.1:1\r\n",
    ),
    *(
        b"-NOSCRIPT x\r\n",
        b"-NOTOWNER 9\r\n",
        b"-NOTOWNER\r\n",
        b"-SHARDS 9\r\n",
        b"-SHARDS\r\n",
        b"-FORMAT 4 9\r\n",
    ),
    *(
        b"-FORMAT\r\n",
        b"-FULL 1 2\r\n",
        b"-FULL\r\n",
        b"-DAMAGED meta\r\n",
        b"-WRONGTYPE x\r\n",
        b"-NOAUTH x\r\n",
        b"-\r\n",
    ),
    *(
        b"-BUSY x\r\n",
        b"-OOM command not allowed\r\n",
        b"-READONLY x\r\n",
        b"-EXECABORT x\r\n",
        b"-ASK 1 h:1\r\n",
    ),
    *(
        b"_\r\n",
        b",nan\r\n",
        b"#t\r\n",
        b"(12\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"~1\r\n+a\r\n",
        b">1\r\n+a\r\n",
        b"|1\r\n+a\r\n+b\r\n",
    ),
    *(b"=5\r\ntxt:x\r\n", b"!5\r\nERR x\r\n", b"?\r\n", b"\r\n", b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
)


def changed_reply(random: Random, data: bytes) -> bytes | None:
    """What is sent in place of some replies; None: the connection is closed."""
    how = random.random()
    if how < 0.1:
        return None
    if how < 0.5:
        values = decoded(data) or [data]
        place = random.randrange(len(values))
        values[place] = changed_value(random, values[place], ODD)
        return b"".join(map(encoded, values))
    odd = random.choice((ODD_REPLIES, ODD_REPLIES, ODD_BYTES))
    if how < 0.6:
        return random.choice(odd)
    return changed_bytes(random, data, odd)


#: Errors are exceptions there.
ODD = (*ODD_VALUES, *ODD_BYTES, b"OK", 1, 0, -1, 2**62, [b"a", b"b"], [1, 2, 3], ValueError("ERR x"))


def decoded(data: bytes) -> list[Any]:
    """The replies in these bytes; none where a part is missing."""
    found, at = [], 0
    try:
        while at < len(data):
            value, at = _decoded(data, at)
            found.append(value)
    except (ValueError, IndexError, RecursionError):
        return []
    return found


def _decoded(data: bytes, at: int) -> tuple[Any, int]:
    stop = data.index(b"\r\n", at)
    kind, text, at = data[at : at + 1], data[at + 1 : stop], stop + 2
    if kind == b"$":
        end = at + int(text)
        return (None, at) if text == b"-1" else (data[at:end], end + 2)
    if kind == b"*":
        values = []
        for _ in range(int(text)):
            value, at = _decoded(data, at)
            values.append(value)
        return values, at
    if kind == b":":
        return int(text), at
    return (ValueError(text.decode("latin-1")) if kind == b"-" else text), at


def encoded(value: Any) -> bytes:
    """A value as a reply."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, ValueError):
        return b"-%s\r\n" % str(value).encode("latin-1", "replace")
    if isinstance(value, int):
        return b":%d\r\n" % (value if abs(value) < 2**64 else 7)
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return b"$%d\r\n%s\r\n" % (len(data), data)
