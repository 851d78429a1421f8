"""What ordered queues leave in Redis, for docs/data-in-redis.md.

``python -m tests.docs.redis_keys`` runs a small shop on a private server, and writes real keys and values
into the page.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_lowkiq import ordered_task, track
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store.resharding import Migrations, Mover
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "data-in-redis.md"
HEADING = r"### `{name}` \((?P<type>[a-z ]+)\)\n"
BLOCK = re.compile(r"```text\n.*?```", re.DOTALL)
TYPES = {b"hash": "hash", b"zset": "sorted set"}
#: Payloads with this text make a job spill.
LONG = "one pound of Darjeeling, first flush, in tins; " * 9
SHOWN_VALUE, SHOWN_ENTRIES = 68, 3
#: Keys with one entry for each field that they may have: all are shown.
WHOLE = ("lease", "meta", "tracker")
#: How long the last run waits for the examples, in s.
PATIENCE = 60
#: Names of the page that the store spells differently as yet.
RENAMED = {
    "first": "debounce",
    "early": "early_due",
    "peaks": "done_scores",
    "classes": "by_priority",
    "ranked": "due_prioritized",
    "held": "due_paused",
    "deaths": "crash_marks",
    "order": "spill_order",
    "dead_order": "dead_spill_order",
}


@dataclass(frozen=True)
class Example:
    """A key as it was found, with the first entries of its value."""

    key: str
    type: str
    entries: list[tuple[bytes, bytes]]
    count: int

    def text(self) -> str:
        """As redis-cli might show it."""
        lines = [f"{self.key}"]
        lines += [f"  {shown(field)} -> {shown(value)}" for field, value in self.entries]
        if self.count > len(self.entries):
            lines.append(f"  ... {self.count} entries")
        return "\n".join(line.rstrip() for line in lines)


def shown(data: bytes) -> str:
    """Bytes as printable text of at most SHOWN_VALUE characters."""
    text = data.decode("latin-1").encode("unicode_escape").decode()
    return text if len(text) <= SHOWN_VALUE else f"{text[:SHOWN_VALUE]}... ({len(data)} bytes)"


def name_of(key: str) -> str:
    """The name of a key on the page: its last word for a shard's or tracker's key, else its first one."""
    found = re.match(r"lowkiq:\d+:(?:tracker:)?\{.*\}:(\w+)$", key) or re.match(r"lowkiq:(?:\d+:)?(\w+)", key)
    assert found is not None, key
    return RENAMED.get(found[1], found[1])


def seen(client: redis.Redis) -> Iterator[tuple[str, Example]]:
    """Each key of ordered queues that is there now, by its name."""
    for raw in sorted(client.scan_iter(match="lowkiq:*", count=1000)):
        type_ = TYPES.get(client.type(raw))
        if type_ is None:
            continue  # it has gone since the scan
        if type_ == "hash":
            entries = sorted(client.hgetall(raw).items())
        else:
            scores = client.zrange(raw, 0, -1, withscores=True)
            entries = [(member, f"{score:.6f}".rstrip("0").rstrip(".").encode()) for member, score in scores]
        key, name = raw.decode(), name_of(raw.decode())
        if name in RENAMED.values():
            key = f"{key.rpartition(':')[0]}:{name}"
        limit = len(entries) if name in WHOLE else SHOWN_ENTRIES
        yield name, Example(key, type_, entries[:limit], len(entries))


def wanted() -> set[str]:
    """The names that the page has."""
    return set(re.findall(HEADING.format(name=r"(\w+)").replace("(?P<type>", "(?:"), PAGE.read_text()))


class Shop:
    """Two ordered tasks that meet every disposition."""

    def __init__(self, url: str) -> None:
        self.app = app = Celery("shop", broker=url, backend=url, set_as_current=False)
        app.conf.update(lowkiq_lease_seconds=0.5, result_expires=60, lowkiq_format_error="message")
        self.go = go = threading.Event()
        self.running = running = threading.Event()

        @ordered_task(
            app=app, shared=False, name="orders", shards=1, bind=True, dont_retry=(LookupError,), merge="max"
        )
        def orders(self: Any, payloads_by_id: dict[str, list[Any]]) -> None:
            for order in payloads_by_id:
                if order == "17":
                    raise ValueError("no stock")
                if order == "66":
                    raise LookupError("no such order")
                if order == "7":
                    self.progress("half of it is saved", current=1, total=2)
                    running.set()
                    go.wait(PATIENCE)

        @ordered_task(
            app=app,
            shared=False,
            name="stock",
            shards=1,
            debounce=60,
            drop_stale=True,
            when_pushed_after_failure="now",
            rate_limit="100/s",
            rate_limit_per_id="1/m",
        )
        def stock(payloads_by_id: dict[str, list[Any]]) -> None:
            if "tea" in payloads_by_id:
                raise ValueError("no such product")

        self.orders, self.stock = orders, stock
        app.finalize()

    def worker(self) -> Any:
        """A real worker in threads of this process."""
        return start_worker(
            self.app,
            hostname="celery@shop",
            concurrency=2,
            pool="threads",
            perform_ping_check=False,
            shutdown_timeout=PATIENCE,
        )

    def call(self) -> None:
        """Jobs that wait: later, urgent, paused, long, debounced; and those that a worker is to run."""
        orders, stock = self.orders, self.stock
        orders.apply_async(("42", {"status": "new", "version": 1}), countdown=3600)
        orders.apply_async(("42", {"status": "paid", "version": 2}), countdown=3600)
        orders.apply_async(("43", {"status": "new", "version": 1}), priority=3, countdown=3600)
        orders.ordered_queue.pause(job_id="44")
        orders.delay("44", {"status": "new", "version": 1})
        for order in ("50", "51"):
            entries = [
                {"id": order, "payload": {"line": n, "text": LONG}, "perform_in": 4e9} for n in range(4)
            ]
            orders.perform_async(entries)
        orders.ordered_queue.bury(["51"])
        orders.delay("17", {"status": "new", "version": 1})
        orders.delay("66", {"status": "new", "version": 1})
        for product in ("coffee", "tea"):
            stock.apply_async((product, {"left": 3}), score=7)
        stock.ordered_queue.run_now(["coffee", "tea"])
        stock.apply_async(("milk", {"left": 5}), score=7)

    def move(self) -> None:
        """A queue gets another number of shards while one of its jobs runs, which has been called again."""
        store, queue = context_of(self.app).store, QueueSpec("parcels", shards=1)
        jobs = [Call(str(number), b'{"kg":3}') for number in range(6)]
        store.push(queue, jobs[:1])
        (shard,) = queue.shard_refs()
        lease = store.acquire(queue, shard, "celery@shop-9f1c2d", store.observe([shard])[0], 0)
        assert [job.id for job in store.claim(queue, lease, 1).jobs] == ["0"]
        store.push(queue, jobs)
        assert Migrations(store.client, queue.name).begin(2)
        mover = Mover(store.client, queue)
        for _ in range(3):
            mover.turn()
        store.push(queue, jobs[:1])

    def has_run(self) -> bool:
        """Whether all is done that is due and can be."""
        orders, stock = self.orders.ordered_queue.stats(), self.stock.ordered_queue.stats()
        return orders.failed >= 2 and stock.failed >= 1 and stock.processed >= 1

    def crash(self) -> None:
        """A node takes the shard of the orders, claims one of them, and is heard of no more."""
        with track("import", app=self.app) as tracker:
            self.orders.apply_async(("7", {"status": "new", "version": 1}), tracker=tracker)
        store = context_of(self.app).store
        queue = self.orders.queue_spec
        (shard,) = queue.shard_refs()
        lease = store.acquire(queue, shard, "celery@lost-9f1c2d", store.observe([shard])[0], 0)
        assert [job.id for job in store.claim(queue, lease, 1).jobs] == ["7"]
        store.take("5d4f1c", "celery@shop")


def collected(server: EmbeddedServer, names: set[str]) -> dict[str, Example]:
    """An example of each named key. Fails when one does not appear in time."""
    shop = Shop(server.url)
    found: dict[str, Example] = {}
    with redis.Redis(unix_socket_path=server.socket_path) as client:

        def look() -> dict[str, Example]:
            for name, example in seen(client):
                if name not in found or len(example.entries) > len(found[name].entries):
                    found[name] = example
            return found

        shop.call()
        shop.move()
        look()
        with shop.worker():
            eventually(shop.has_run)
            look()
        shop.stock.apply_async(("tea", {"left": 4}), score=8)
        look()
        shop.crash()
        with shop.worker():
            try:
                eventually(shop.running.is_set)
                eventually(lambda: names <= look().keys())
            finally:
                shop.go.set()
    return found


def main() -> None:
    """Write the examples into the page."""
    page = PAGE.read_text()
    with EmbeddedServer() as server:
        examples = collected(server, wanted())
    for name, example in examples.items():
        heading = re.search(HEADING.format(name=name), page)
        if heading is None:
            print(f"{name} is not on the page", file=sys.stderr)
            continue
        block = BLOCK.search(page, heading.end())
        assert block is not None
        page = f"{page[: block.start()]}```text\n{example.text()}\n```{page[block.end() :]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
