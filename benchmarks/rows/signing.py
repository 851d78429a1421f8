"""What a signature costs: processor time of the caller and of the worker, and memory of Redis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from statistics import mean
from threading import Event
from typing import Any, NamedTuple

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.decode import decode_plain
from celery_lowkiq.integration.gate import Gate, Signing
from celery_lowkiq.rules.models import Batch, Call, Job, Lease, Payload, QueueSpec, ShardRef
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.push import Sender, push_call

from ..bench import Bench
from ..row import Row, Side, Target

QUEUE = QueueSpec("blank", shards=5)
SIZES = range(8, 136, 4)
LEASE = Lease(ShardRef("blank", 0), "bench", 1)
BODY = b'{"status":"paid","version":7}'


def signing(bench: Bench) -> Iterator[Row]:
    signer = Signing("require", {"bench": "a secret of the bench"})
    rounds = bench.count(5_000, 2_000)
    signature, codec = signer.sign_payload("blank", b"42", BODY, None), context_of(bench.app).codec
    batch = Batch(QUEUE, LEASE, 1, (Job("42", (Payload(BODY, 1.0, signature=signature),), 1.0),), Event())
    gates = {by: Gate("blank", codec, codec, by or Signing("off", None)) for by in (None, signer)}
    sender = Sender()

    def called(by: Signing | None) -> object:
        return push_call(QUEUE, LEASE.shard, sender, [Call("42", BODY)], by)

    def read(by: Signing | None) -> object:
        return decode_plain(batch, gates[by])

    for name, text, turn in (
        ("sign", "a call without a record is signed", called),
        ("verify", "its payload is verified", read),
    ):
        yield Row(
            f"signing-{name}",
            f"{text}: processor time beside the same without",
            "us",
            _cpu_us(turn, signer, rounds),
            (),
            (Target(4.0),),
            yardstick="machine",
        )
    costs = [_memory(bench, size, signer) - _memory(bench, size, None) for size in SIZES]
    yield Row(
        "signing-memory",
        f"bytes of a signature in the record of a waiting job; payloads of {SIZES[0]} to {SIZES[-1]} bytes",
        "bytes",
        mean(stored for stored, _ in costs),
        (Side("as allocated", mean(allocated for _, allocated in costs)),),
        (Target(24.0),),
        yardstick="nothing",
    )


def _cpu_us(turn: Callable[[Signing | None], object], signer: Signing, rounds: int) -> float:
    """How much more a signed turn takes: the least of each, by turns."""
    least = {None: math.inf, signer: math.inf}
    for by in [None, signer] * 15:
        began = time.process_time()
        for _ in range(rounds):
            turn(by)
        least[by] = min(least[by], (time.process_time() - began) / rounds * 1e6)
    return least[signer] - least[None]


class _Memory(NamedTuple):
    """Bytes of the record of a job: its own, and those that are allocated for it."""

    stored: float
    allocated: float

    def __sub__(self, other: _Memory) -> _Memory:
        return _Memory(self.stored - other.stored, self.allocated - other.allocated)


def _memory(bench: Bench, size: int, signer: Signing | None) -> _Memory:
    jobs = bench.count(5_000, 1_000)
    bench.empty()
    bench.store.pusher.signer = signer
    try:
        # Scores that are made by Redis differ in length.
        made = [Call(str(n), b"x" * size, sent=1e9 + 0.123457, perform_in=2e9) for n in range(jobs)]
        bench.store.push(QUEUE, made)
    finally:
        bench.store.pusher.signer = None
    keys = [shard_keys(shard)["jobs"] for shard in QUEUE.shard_refs()]
    direct: Any = bench.direct
    allocated = sum(direct.memory_usage(key, samples=0) for key in keys)
    stored = sum(len(record) for key in keys for record in direct.hvals(key))
    return _Memory(stored / jobs, allocated / jobs)
