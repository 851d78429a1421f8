"""Makes the stream that comes with the example: ``python -m examples.replica.generate``.

A made-up project grows for some years. Work on a file comes in bursts: a change is soon followed by a fix of
it, so that messages of one path are close together. Now and then a commit sweeps over many files. The same
seed makes the same stream.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from itertools import accumulate, count, islice

from .stream import SHIPPED, Event

SEED = 1907
EVENTS = 2600
STARTED_AT = 1_404_205_200  # Unix time (s) of the first commit
SECONDS_BETWEEN = (600, 200_000)
FOLDERS = (
    "src",
    "src/api",
    "src/models",
    "src/jobs",
    "src/views",
    "tests",
    "docs",
    "web/pages",
    "web/styles",
)
SUFFIXES = {"docs": "md", "web/pages": "html", "web/styles": "css"}
NAMES = (
    *("account", "address", "basket", "client", "coupon", "courier", "depot", "invoice", "label", "order"),
    *("parcel", "payment", "pickup", "price", "product", "refund", "report", "return", "route", "search"),
    *("session", "shipment", "stock", "supplier", "tariff", "tax", "user", "van", "voucher", "zone"),
)
#: Chances that a commit fixes the one before, adds a file, deletes one, or sweeps over many.
FIXES, ADDS, DELETES, SWEEPS = 0.4, 0.4, 0.12, 0.015
SWEPT = 30
#: Of the files by age, the n-th is touched in proportion to 1 / (n + 8): the oldest are the busiest.
WEIGHTS = tuple(accumulate(1 / (age + 8) for age in range(len(FOLDERS) * len(NAMES))))


def generate(seed: int, events: int) -> list[Event]:
    """The first ``events`` events of the project that ``seed`` stands for."""
    return list(islice(_history(random.Random(seed)), events))


def _history(chance: random.Random) -> Iterator[Event]:
    fresh = _paths(chance)
    alive: list[str] = []
    last: list[str] = []
    at = STARTED_AT
    for version in count(1):
        at += chance.randint(*SECONDS_BETWEEN)
        changes = _commit(chance, fresh, alive, last)
        for path, status in changes.items():
            yield Event(path, version, at, status, None if status == "D" else _blob(path, version))
        last = [path for path, status in changes.items() if status != "D"]
        alive = [path for path in alive if path in last or path not in changes]
        alive += [path for path in last if path not in alive]


def _paths(chance: random.Random) -> list[str]:
    """Every path that the project may ever have, in the order in which they will appear."""
    paths = [f"{folder}/{name}.{SUFFIXES.get(folder, 'py')}" for folder in FOLDERS for name in NAMES]
    return sorted(paths, key=lambda _: chance.random())


def _commit(chance: random.Random, fresh: list[str], alive: list[str], last: list[str]) -> dict[str, str]:
    """The changes of one commit by path; added paths come from ``fresh``."""
    if last and chance.random() < FIXES:
        return dict.fromkeys(last, "M")
    changes = {}
    if alive:
        number = SWEPT if chance.random() < SWEEPS else chance.choice((1, 1, 2, 2, 3, 5))
        touched = chance.choices(alive, cum_weights=WEIGHTS[: len(alive)], k=number)
        changes = dict.fromkeys(touched, "M")
        if chance.random() < DELETES:
            changes[chance.choice(alive)] = "D"
    if not changes or (fresh and chance.random() < ADDS):
        changes[fresh.pop(0)] = "A"
    return changes


def _blob(path: str, version: int) -> str:
    return hashlib.sha1(f"{path}@{version}".encode()).hexdigest()[:12]  # noqa: S324 - a number that stays the same


def main() -> None:
    """Write the shipped stream."""
    lines = "".join(json.dumps(asdict(event)) + "\n" for event in generate(SEED, EVENTS))
    SHIPPED.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main()
