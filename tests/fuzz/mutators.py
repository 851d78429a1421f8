"""Changes of valid bytes and values. Pure: chance comes in."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Sequence
from random import Random
from typing import Any

from celery_lowkiq.integration.codec import MARK


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


#: What numbers, texts and records are replaced by.
ODD_BYTES = (
    *(b"", b"\0", b" ", b"-", b"nan", b"-inf", b"inf", b"1e400", b"0x10", b"1_0", b"-1", b"1.2.3"),
    *(b"9" * 19, b"9" * 5000, b"0" * 400 + b"1", b"18446744073709551616", "\u0661".encode(), b"1 " * 2000),
    *(b"\xff\xfe\0", b"\xed\xa0\x80", b"\x1b[31m", b"\r\n$-1\r\n", "\u202e".encode(), b"x" * 70_000),
    *(b"*", b"[a-z]", b"{a}:0", b"%s%n", b"%1$s", b"(.+)+$", b"../../etc/passwd", b"</pre><script>alert(1)"),
    *(b"[" * 100_000, b'{"a":' * 2000, b'{"a":1,"a":2}', b"NaN", b"S", b"R", b"null", b"[]", b"{}", b'""'),
    *(b"{{7*7}}", b"${jndi:ldap://x}", b"!!python/object/apply:os.abort []", b"'; FLUSHALL --"),
)
ODD_VALUES = (
    *(None, True, False, 0, -1, 10**30, 10**400, 1.5, math.nan, math.inf, -math.inf, 2**53 + 1, 5e-324),
    *(
        "",
        " ",
        "\0",
        "\ud800",
        "\u202e",
        "x" * 70_000,
        "a\r\nb",
        "\x1b[2J",
        "nan",
        "1e400",
        "*",
        "{a}",
        "__class__",
    ),
    *(
        [],
        {},
        [[]],
        {"": ""},
        [None] * 50,
        {"a": {"a": {"a": 1}}},
        {"__type__": "uuid", "__value__": {"hex": "0"}},
    ),
    *(
        {"__type__": "datetime", "__value__": "x"},
        json.loads("[" * 300 + "]" * 300),
        b"\xff",
        ("a", "b"),
        {1: 2},
    ),
)


def canaries(path: str) -> tuple[bytes, ...]:
    """Bytes that make the file, where they are unpickled, or loaded as YAML."""
    pickled = pickle.dumps(Canary(path))
    return (
        pickled,
        MARK + b"application/x-python-serialize\0binary\0" + pickled,
        MARK + b"application/x-yaml\0utf-8\0!!python/object/apply:builtins.open [%s, w]" % path.encode(),
    )


def changed_bytes(random: Random, data: bytes, odd: Sequence[bytes] = ODD_BYTES) -> bytes:
    """The bytes with one to three changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(_CHANGES)(random, data, odd)
    return data


def _flip(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x80"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _cut(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    start, stop = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return random.choice((data[:start], data[stop:], data[:start] + data[stop:]))


def _repeat(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    start, stop = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:stop] + data[start:stop] * random.choice((1, 2, 50)) + data[stop:]


def _insert(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(odd) + data[at:]


def _replace_word(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    """Between two of the characters with which records separate their fields."""
    separator = random.choice((b" ", b"\0", b"\n", b":", b",", b"&", b"=", b"/"))
    words = data.split(separator)
    words[random.randrange(len(words))] = random.choice(odd)
    return separator.join(words)


def _replace(random: Random, data: bytes, odd: Sequence[bytes]) -> bytes:
    return random.choice(odd)


_CHANGES = (_flip, _flip, _cut, _cut, _repeat, _insert, _replace_word, _replace_word, _replace)


def changed_value(random: Random, value: Any, odd: Sequence[Any] = ODD_VALUES) -> Any:
    """The value of lists, dicts and scalars, with something odd in one to three places."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed_at(random, value, odd)
    return value


def _changed_at(random: Random, value: Any, odd: Sequence[Any]) -> Any:
    if not isinstance(value, (dict, list, tuple)) or not value or random.random() < 0.15:
        if isinstance(value, str) and random.random() < 0.3:
            return changed_bytes(random, value.encode("utf-8", "replace")).decode("utf-8", "replace")
        return copy.deepcopy(random.choice(odd))
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = random.choice(places)
    if isinstance(value, tuple):
        return tuple(_changed_at(random, each, odd) if n == place else each for n, each in enumerate(value))
    how = random.random()
    if how < 0.15:
        del value[place]
    elif how < 0.25 and isinstance(value, dict):
        value[str(random.choice(odd))[:50]] = value.pop(place)
    else:
        value[place] = _changed_at(random, value[place], odd)
    return value
