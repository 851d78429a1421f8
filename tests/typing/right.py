"""Right uses of the public types: type checkers find no error here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from celery import Celery
from celery.result import AsyncResult
from typing_extensions import assert_type

from celery_lowkiq import BulkEntry, ById, OrderedTask, ordered_task

app = Celery("typed")


@ordered_task
def bare(payloads_by_id: dict[str, list[dict[str, Any]]]) -> int:
    return len(payloads_by_id)


@ordered_task(shards=24, merge="max", retry_in=[1, timedelta(minutes=5), "exponential"], keep=1)
def with_options(payloads_by_id: dict[str, list[str]]) -> ById:
    return ById({job_id: payloads[-1] for job_id, payloads in payloads_by_id.items()})


@ordered_task(bind=True, app=app, when_full="drop_oldest", max_length=10, rate_limit="10/m")
def bound(self: OrderedTask, payloads_by_id: dict[str, list[str]]) -> None:
    if self.request.id is None:
        raise self.retry(countdown=5)


@ordered_task(key=lambda payload: payload["id"], retry_in=lambda exc, retry_count: 5.0, keep="all")
def keyed(payloads_by_id: dict[str, list[Any]]) -> str:
    return "done"


@ordered_task(by="order_id", shards=24, latest=True)
def in_place(order_id: int, status: str, *, note: str | None = None) -> str:
    return status


@ordered_task(by=lambda arguments: arguments["shop"], bind=True, merge="max", pydantic=True)
def in_place_bound(self: OrderedTask, shop: str) -> int:
    raise self.retry(countdown=5)


class Base(OrderedTask[str]):
    abstract = True
    shards = 24

    def helped(self) -> str:
        return "helped"


@ordered_task(base=Base, bind=True, drop_stale=timedelta(days=1))
def of_a_base(self: Base, payloads_by_id: dict[str, list[Any]]) -> str:
    return self.helped()


class Sync(OrderedTask):
    name = "sync"
    max_retries = None

    def retry_in(self, retry_count: int) -> float:
        return 10.0 * (retry_count + 1)

    def run(self, payloads_by_id: dict[str, list[Any]]) -> None: ...


def calls() -> None:
    assert_type(bare, OrderedTask[int])
    assert_type(with_options, OrderedTask[ById])
    assert_type(bare.delay("42", {"status": "paid"}), AsyncResult[int])
    assert_type(bare.delay(id=UUID(int=1)), AsyncResult[int])
    assert_type(bare.delay(42).get(timeout=5), int)
    assert_type(keyed.delay({"id": 1}), AsyncResult[str])
    assert_type(keyed.delay(payload={"id": 1}), AsyncResult[str])
    assert_type(bare.apply_async(("42", {}), countdown=5, score=7.5, priority=3), AsyncResult[int])
    assert_type(bare({"42": [{}]}), int)
    assert_type(bare.apply(("42",)).get(), int)
    bare.apply_async(kwargs={"id": 1}, eta=datetime.now(timezone.utc))
    bare.perform_async([{"id": 0}, {"id": "1", "payload": {}, "score": 7, "perform_in": timedelta(1)}])
    entries: list[BulkEntry] = [{"id": number, "payload": number} for number in range(3)]
    assert [result.id for result in bare.perform_async(entries, results=True)]
    assert_type(of_a_base.helped(), str)
    assert_type(in_place.delay(42, status="paid"), AsyncResult[str])
    assert_type(in_place.delay(42, "paid", note=None).get(), str)
    assert_type(in_place(42, "paid"), str)
    assert_type(in_place.apply_async((42, "paid"), countdown=5), AsyncResult[str])
    assert_type(in_place_bound.delay("shop"), AsyncResult[int])
    assert_type(in_place.ordered_queue.spec.name, str)
    assert bound.ordered_queue.stats().length >= 0
    assert bound.shards == 5


async def calls_from_asyncio() -> None:
    assert_type(await bare.adelay("42", {"status": "paid"}), AsyncResult[int])
    assert_type(await keyed.adelay({"id": 1}), AsyncResult[str])
    assert_type(await bare.aapply_async(("42", {}), countdown=5), AsyncResult[int])
    assert_type(await bare.aperform_async([{"id": 0}]), None)
    assert_type(await bare.aperform_async([{"id": 0}], results=True), Sequence[AsyncResult[int]])
    assert_type(await in_place.adelay(42, status="paid"), AsyncResult[str])


@ordered_task
async def awaiting(payloads_by_id: dict[str, list[Any]]) -> int:
    return len(payloads_by_id)


@ordered_task(shards=24, soft_time_limit=5)
async def awaiting_with_options(payloads_by_id: dict[str, list[Any]]) -> str:
    return "done"


@ordered_task(bind=True)
async def awaiting_bound(self: OrderedTask, payloads_by_id: dict[str, list[Any]]) -> str:
    return "done"


@ordered_task(per_id=True, batch_size=50)
async def awaiting_per_id(job_id: str, payloads: list[dict[str, Any]]) -> int:
    return len(payloads)


@ordered_task(per_id=True, bind=True)
async def awaiting_per_id_bound(self: OrderedTask, job_id: str, payloads: list[str]) -> int:
    return len(payloads)


@ordered_task(per_id=True)
def per_id(job_id: str, payloads: list[str]) -> int:
    return len(payloads)


@ordered_task(per_id=True, bind=True)
def per_id_bound(self: OrderedTask, job_id: str, payloads: list[str]) -> int:
    return len(payloads)


@ordered_task(by="order_id")
async def awaiting_in_place(order_id: int, status: str) -> str:
    return status


@ordered_task(by="order_id", bind=True)
async def awaiting_in_place_bound(self: OrderedTask, order_id: int) -> str:
    return "done"


async def async_tasks() -> None:
    assert_type(awaiting.delay("42"), AsyncResult[int])
    assert_type(awaiting_with_options.delay("42").get(), str)
    assert_type(awaiting_bound.delay("42"), AsyncResult[str])
    assert_type(awaiting_per_id.delay("42", {}), AsyncResult[int])
    assert_type(awaiting_per_id_bound.delay("42", {}), AsyncResult[int])
    assert_type(per_id.delay("42", {}), AsyncResult[int])
    assert_type(per_id_bound.delay("42", {}), AsyncResult[int])
    assert_type(per_id("42", []), int)
    assert_type(awaiting_in_place.delay(42, status="paid"), AsyncResult[str])
    assert_type(awaiting_in_place_bound.delay(42), AsyncResult[str])
    assert_type(await awaiting({"42": [{}]}), int)
    assert_type(await awaiting_per_id.run("42", []), int)
    assert_type(await awaiting_in_place(42, "paid"), str)
    assert_type(await awaiting_in_place_bound(42), str)
    assert_type(await awaiting_in_place.run(42, "paid"), str)
    assert_type(awaiting.apply(("42",)).get(), int)
