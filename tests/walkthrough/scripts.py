"""What happens in each trace, and when: the same calls on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Script:
    """One trace.

    ``calls`` has (ms, id, version, what the task writes). ``plan`` gives the runs of ``id/version`` their
    duration in ms and failures; others take 200 ms. ``workers`` has the threads of each worker by its letter.
    """

    name: str
    title: str
    story: str
    task: str
    calls: tuple[tuple[int, str, int, str], ...]
    plan: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=lambda: {"A": 2})
    plain_workers: Mapping[str, int] | None = None
    #: What else happens: (ms, name of an action).
    actions: tuple[tuple[int, str], ...] = ()
    amounts: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    #: Rows that are right at the end, where they are not the newest call's.
    right: Mapping[str, str] = field(default_factory=dict)
    noun: str = "order"
    note: str = ""


MERGE = Script(
    "merge",
    "Messages arrive together",
    "A shop sends a message for each change of an order, and four of order 42 arrive within half a second. "
    "Two threads work.",
    "save_order",
    (
        (0, "42", 1, "new"),
        (150, "42", 2, "paid"),
        (250, "99", 1, "new"),
        (350, "42", 3, "packed"),
        (500, "42", 4, "shipped"),
        (650, "99", 2, "paid"),
    ),
    {
        "42/1": [{"ms": 900}],
        "42/2": [{"ms": 300}],
        "42/3": [{"ms": 700}],
        "42/4": [{"ms": 420}],
        "99/1": [{"ms": 400}],
    },
)

FAILURE = Script(
    "failure",
    "A failure and its retry",
    "The service that the task asks is down for a moment. The task fails, and is retried after 1.2 s. "
    "Meanwhile the order is shipped.",
    "sync_order",
    ((0, "42", 1, "paid"), (300, "99", 1, "paid"), (700, "42", 2, "shipped")),
    {"42/1": [{"ms": 400, "down": True}, {"ms": 300}], "42/2": [{"ms": 250}]},
)

KILL = Script(
    "kill",
    "kill -9",
    "Two workers. The one that works order 42 is killed in the middle, as by the OOM killer.",
    "ship_order",
    ((0, "42", 1, "paid"), (1100, "42", 2, "shipped")),
    {"42/1": [{"ms": 3000}, {"ms": 300}], "42/2": [{"ms": 300}]},
    workers={"A": 1, "B": 1},
    actions=((700, "kill"),),
    note="Recorded with a lease of 2 s (default: 10 s), and for the plain queue with acks_late=True and a "
    "visibility timeout of 4 s that is looked after each second (defaults: one hour, each 100 s). Without "
    "acks_late, Celery's default, the message of the killed worker is lost.",
)

TWICE = Script(
    "twice",
    "Delivered twice",
    "A webhook is delivered at least once: “paid” comes again after “shipped”, and once more "
    "when all is done. One thread, so that nothing runs at once.",
    "update_order",
    (
        (0, "42", 1, "new"),
        (150, "42", 2, "paid"),
        (300, "42", 3, "shipped"),
        (450, "42", 2, "paid"),
        (1900, "42", 2, "paid"),
    ),
    {"42/1": [{"ms": 700}], "42/2": [{"ms": 250}, {"ms": 250}, {"ms": 250}], "42/3": [{"ms": 250}]},
    workers={"A": 1},
    right={"42": "shipped"},
    note="The score of a call is its version, so that drop_stale knows what is old.",
)

HOLD = Script(
    "hold",
    "A payload dies",
    "Entries of an account. The second is in a currency without a rate, and dies. After two seconds an "
    "operator adds the rate.",
    "post_entry",
    ((0, "42", 1, ""), (300, "42", 2, ""), (600, "42", 3, ""), (800, "99", 1, ""), (1000, "42", 4, "")),
    workers={"A": 2},
    actions=((2200, "mend"),),
    amounts={
        1: {"amount": 10, "currency": "EUR"},
        2: {"amount": 50, "currency": "GBP"},
        3: {"amount": -30, "currency": "EUR"},
        4: {"amount": -20, "currency": "EUR"},
    },
    right={"42": "20 €", "99": "10 €"},
    noun="account",
)

_IDS = ("42", "7", "99", "64")
RESHARD = Script(
    "reshard",
    "More shards, while it runs",
    "Two parts of a queue are not enough any more, so their number is doubled while messages wait. The plain "
    "side does what people do without shards: a queue with one worker for each part, chosen by crc32(id).",
    "track_order",
    tuple(
        (round(65 * (len(_IDS) * version + place)), order, version + 1, f"step {version + 1}")
        for version in range(5)
        for place, order in enumerate(_IDS)
    ),
    workers={"A": 4},
    plain_workers={"A": 1, "B": 1, "C": 1, "D": 1},
    actions=((810, "reshard"),),
)

SCRIPTS = (MERGE, FAILURE, KILL, TWICE, HOLD, RESHARD)
