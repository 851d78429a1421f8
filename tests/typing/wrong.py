"""Wrong uses of the public types: type checkers find an error in each line that says so."""

from __future__ import annotations

from celery_lowkiq import ordered_task


@ordered_task(shard=3)  # error
def misspelt(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(merge="mix")  # error
def no_such_value(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(shards="24")  # error
def no_such_type(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(retry_in="linear")  # error
def no_such_delay(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(queue="mine")  # error
def refused(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task()  # error
def without_payloads() -> None: ...


@ordered_task
def task(payloads_by_id: dict[str, list[str]]) -> int:
    return 1


task.perform_async([{"idd": 1}])  # error
task.perform_async([{"id": 1.5}])  # error
task.ordered_queue.stat()  # error
task.delay()  # error
task.delay("1", "x", "y")  # error
text: str = task.delay("1").get()  # error


@ordered_task(by="order_id")
def in_place(order_id: int, status: str) -> int:
    return 1


in_place.delay(42)  # error
in_place.delay("42", "paid")  # error
in_place.delay(42, state="paid")  # error
in_place.adelay(42, state="paid")  # error


@ordered_task(latest=True)  # error
def latest_of_a_batch(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(per_id=True)  # error
def per_id_of_a_batch(payloads_by_id: dict[str, list[str]]) -> None: ...


@ordered_task(by="order_id")
async def awaiting_in_place(order_id: int) -> int:
    return 1


awaiting_in_place.delay("42")  # error
