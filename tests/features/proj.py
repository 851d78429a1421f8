"""The app of the feature tests. An ordered task does what its last payload says, and notes it in a ledger."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject
from pydantic import BaseModel

from celery_lowkiq import Again, BusinessFailure, ById, JobsFailed, ordered_task

#: What a run notes of its request.
HEADERS = ("tenant", "shadow", "parent_id", "root_id", "stamps")
#: What a call may say of itself.
SEEN = (
    *("shadow", "expires", "root_id", "parent_id", "group", "group_index", "timelimit", "ignore_result"),
    *("headers", "stamps", "stamped_headers", "replaced_task_nesting", "argsrepr", "kwargsrepr", "chain"),
    *("callbacks", "errbacks", "chord", "correlation_id", "retries", "eta", "is_eager", "called_directly"),
)
#: Where tasks write. A task that runs in the tests' own process writes nothing.
HERE = Path(os.environ["PROJ_DIRECTORY"]) if "PROJ_DIRECTORY" in os.environ else None
#: Of calls of "short", in s: a busy machine starts a run sooner.
TTL = 8


def note(event: str, **fields: Any) -> None:
    """Append one whole line."""
    if HERE is None:
        return
    with (HERE / "ledger").open("a") as ledger:
        ledger.write(json.dumps({"event": event, **fields}) + "\n")


def wait_for_gate(name: str) -> None:
    """Until the test makes the file."""
    while not (HERE / name).exists():
        time.sleep(0.005)


class Expected(Exception):
    """An error that a task says it may raise."""


class Halt(BaseException):
    """No ``Exception``, as ``asyncio.CancelledError``."""


class InAppContext(Task):
    """The task class of Flask's documentation, with an app context of our own."""

    abstract = True
    context = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.context.app = "the app"
        try:
            return self.run(*args, **kwargs)
        finally:
            self.context.app = None


def act(self: Any, what: dict[str, Any]) -> Any:
    """What a payload may ask for."""
    if "progress" in what:
        self.update_state(state="PROGRESS", meta={"done": what["progress"]})
    if "say" in what:
        self.progress(what["say"], current=1, total=2)
    if "gate" in what:
        note("held", gate=what["gate"])
        wait_for_gate(what["gate"])
    if "adds" in what:
        return self.app.tasks["add"].delay(what["adds"], 1).id
    if "calls" in what:
        return asyncio.run(self.app.tasks["work"].adelay(what["calls"], {})).id
    if "more" in what:
        self.add_to_chord(self.app.signature("add", args=(what["more"], 1)))
    if "fail" in what:
        raise ValueError(what["fail"])
    if "halt" in what:
        raise Halt(what["halt"])
    if "expected" in what:
        raise Expected(what["expected"])
    if "io" in what:
        raise OSError(what["io"])
    if "once" in what and not (HERE / what["once"]).exists():
        (HERE / what["once"]).touch()
        raise ValueError("the first time")
    if "retry" in what and self.request.retries < what["retry"]:
        raise self.retry(countdown=0.01)
    if "ignore" in what:
        raise Ignore
    if "business" in what:
        raise BusinessFailure(what["business"])
    if "reject" in what:
        raise Reject(what["reject"])
    if "replace" in what:
        return self.replace(self.app.signature("add", args=(what["replace"], 1)))
    return what.get("return")


def shown_request(task: Any) -> dict[str, Any]:
    """What a task sees of its call, whatever the id of that is."""
    request = task.request
    # Where there is nothing to see, Celery has None or an empty value.
    found = {name: getattr(request, name) or None for name in SEEN}
    found["has_eta"] = request.eta is not None
    found["priority"] = request.delivery_info["priority"]
    found["app_id"] = request.properties.get("app_id")
    found["redelivered"] = request.delivery_info["redelivered"] or None
    # Ours is the job's, from 0 to 9.
    found["priority"] = min(request.delivery_info["priority"] or 0, 9)
    found["app_id"] = request.properties.get("app_id")
    # Each call has a countdown of its own.
    found["eta"] = bool(request.eta)
    text = json.dumps(found, default=str)
    shown: dict[str, Any] = json.loads(text.replace(request.id, "<its id>"))
    return shown


class Order(BaseModel):
    id: int
    lines: list[str] = []


def save_order(order: Order) -> Order:
    """A function that takes and returns models."""
    return Order(id=order.id, lines=[*order.lines, "saved"])


# Celery 5.5 does not look up annotations that are strings.
save_order.__annotations__.update({"order": Order, "return": Order})


def make_app(url: str, **settings: Any) -> Celery:
    """A new app with its own tasks."""
    app = Celery("features", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        lowkiq_lease_seconds=2.0,
        result_extended=True,
        task_send_sent_event=True,
        **settings,
    )
    ordered = {"app": app, "shared": False, "bind": True, "shards": 4, "retry_in": lambda n: 0.02}

    def one(self: Any, payloads_by_id: dict[str, list[Any]]) -> Any:
        ((job_id, payloads),) = payloads_by_id.items()
        request = self.request
        headers = {name: request.get(name) for name in HEADERS}
        headers["custom"] = request.headers
        fields = {"task_id": request.id, "retries": request.retries, "headers": headers}
        note("run", id=job_id, queue=request.lowkiq.queue, payloads=payloads, **fields)
        what = payloads[-1]
        if isinstance(what, dict):
            if len(payloads) > what.get("take", len(payloads)):
                raise Again(payloads[what["take"] :], after=0.01, result=["taken", payloads[: what["take"]]])
            returned = act(self, what)
            return [job_id, payloads] if returned is None else returned
        return [job_id, payloads]

    ordered_task(**ordered, name="work", max_retries=2, track_started=True)(one)
    ordered_task(**ordered, name="quiet", max_retries=0, ignore_result=True)(one)
    ordered_task(
        **ordered, name="errors", max_retries=0, ignore_result=True, store_errors_even_if_ignored=True
    )(one)
    ordered_task(**ordered, name="hopeless", max_retries=9, dont_retry=(ValueError,))(one)
    ordered_task(
        **ordered,
        name="backoff",
        max_retries=9,
        autoretry_for=(OSError,),
        retry_backoff=0.05,
        retry_jitter=False,
        retry_kwargs={"max_retries": 1},
    )(one)
    ordered_task(**{**ordered, "retry_in": [0.02, 0.02]}, name="listed")(one)
    ordered_task(
        **{**ordered, "retry_in": lambda exc, n: 0.02 if isinstance(exc, OSError) else False},
        name="decides",
        max_retries=3,
    )(one)
    ordered_task(**{**ordered, "retry_in": lambda n: 3600}, name="slow to retry", queue_name="slow")(one)
    ordered_task(**ordered, name="expects", max_retries=0, throws=(Expected,))(one)
    ordered_task(**ordered, name="portions", max_payloads_per_run=2)(one)
    ordered_task(**ordered, name="latest", keep=1)(one)
    ordered_task(**ordered, name="ledger", when_dead="hold", max_retries=0)(one)
    ordered_task(**ordered, name="calm", debounce=2, debounce_max=600)(one)
    ordered_task(**ordered, name="bounded", debounce=1, debounce_max=1)(one)
    ordered_task(**ordered, name="newer", drop_stale=True)(one)
    ordered_task(**ordered, name="short", job_ttl=TTL)(one)
    ordered_task(
        **{**ordered, "retry_in": 3600}, name="impatient", max_retries=2, when_pushed_after_failure="now"
    )(one)
    for when_full in ("refuse", "drop_newest", "drop_oldest"):
        few = {**ordered, "shards": 1, "max_length": 1, "when_full": when_full}
        ordered_task(**few, name=when_full)(one)
    # A worker that has the shard of an id here need not have the one of "work".
    ordered_task(**{**ordered, "shards": 3}, name="publish", ignore_result=True)(one)
    ordered_task(**ordered, name="keyed", key=lambda payload: payload["id"])(one)

    @ordered_task(app=app, shared=False, name="batch", shards=1, batch_size=10, max_retries=0, retry_in=0.02)
    def batch(payloads_by_id: dict[str, list[Any]]) -> Any:
        note("batch", payloads=payloads_by_id)
        whats = {job_id: payloads[-1] for job_id, payloads in payloads_by_id.items()}
        for what in whats.values():
            if "gate" in what:
                note("held", gate=what["gate"])
                wait_for_gate(what["gate"])
        named = {key: ValueError(what["fail"]) for key, what in whats.items() if "fail" in what}
        if any("unknown" in what for what in whats.values()):
            named = {"nobody": ValueError("unknown")}
        if named or any("none" in what for what in whats.values()):
            raise JobsFailed(named)
        if any("same" in what for what in whats.values()):
            return sorted(whats)
        return ById({job_id: what["value"] for job_id, what in whats.items() if "value" in what})

    def save(self: Any, order_id: Any, what: Any = None, *, label: str = "") -> Any:
        request = self.request
        fields = {"task_id": request.id, "retries": request.retries, "args": request.args}
        note("save", id=str(order_id), what=what, label=label, kwargs=request.kwargs, **fields)
        returned = act(self, what) if isinstance(what, dict) else None
        return [order_id, what, label] if returned is None else returned

    in_place = {**ordered, "by": "order_id", "max_retries": 2}
    ordered_task(**in_place, name="save")(save)
    ordered_task(**{**in_place, "retry_in": 600}, name="newest", latest=True)(save)
    ordered_task(**in_place, name="equal", merge="max")(save)
    ordered_task(**{**in_place, "by": "order.id", "bind": False}, name="path", pydantic=True)(save_order)

    def look(self: Any, job_id: Any, what: Any = None, **more: Any) -> str:
        note("look", id=job_id, what=what, more=more, request=shown_request(self))
        return json.dumps([what, more])

    app.task(shared=False, bind=True, name="look")(look)
    ordered_task(**ordered, name="look in place", queue_name="look-in-place", by="job_id")(look)
    # With one shard, one lane starts a child process.
    in_process = {**ordered, "run_in": "process", "shards": 1}
    ordered_task(**in_process, name="look in process", queue_name="look-in-process", by="job_id")(look)

    @ordered_task(**ordered, name="look awaited", queue_name="look-awaited", by="job_id")
    async def look_awaited(self: Any, job_id: str, what: Any = None, **more: Any) -> str:
        return look(self, job_id, what, **more)

    @ordered_task(**ordered, name="look at batch", queue_name="look-at-batch")
    def look_at_batch(self: Any, payloads_by_id: dict[str, list[Any]]) -> None:
        ((job_id, (what,)),) = payloads_by_id.items()
        note("look", id=job_id, what=what, more={}, request=shown_request(self))

    def step(self: Any, order_id: Any, n: int) -> int:
        try:
            raise self.retry(args=(order_id, n + 1), countdown=0.01)
        except MaxRetriesExceededError:
            return n

    async def step_async(self: Any, order_id: Any, n: int) -> int:
        return step(self, order_id, n)

    ordered_task(**in_place, name="step")(step)
    ordered_task(**in_place, name="step-in-a-process", run_in="process")(step)
    ordered_task(**in_place, name="async-step")(step_async)

    def flask(self: Any, order_id: Any, fail: str | None = None) -> Any:
        note("flask", id=order_id, task=self.name)
        if fail is not None:
            raise ValueError(fail)
        return [order_id, self.context.app]

    of_flask = {"base": InAppContext, "bind": True, "shared": False}
    app.task(**of_flask, name="flask")(flask)
    in_lane = {**ordered, **of_flask, "by": "order_id", "max_retries": 0}
    ordered_task(**in_lane, name="flask-in-place")(flask)
    ordered_task(**in_lane, name="flask-in-a-process", run_in="process")(flask)

    @app.task(shared=False, name="add")
    def add(x: Any, y: Any) -> Any:
        return x + y

    @app.task(shared=False, name="give")
    def give(value: Any) -> Any:
        return value

    @app.task(shared=False, name="total")
    def total(values: list[Any]) -> Any:
        return sum(values)

    @app.task(shared=False, name="tell")
    def tell(value: Any, label: str) -> Any:
        note("told", value=value, label=label)
        return value

    @app.task(shared=False, name="mourn")
    def mourn(task_id: str) -> None:
        note("mourned", task_id=task_id)

    return app


def _noted(signal: str) -> Any:
    def handle(sender: Any = None, **fields: Any) -> None:
        request = fields.get("request") or getattr(sender, "request", None)
        note(
            "signal", signal=signal, task=getattr(sender, "name", None), task_id=getattr(request, "id", None)
        )

    return handle


if HERE is not None:  # in the worker, not in the tests' own process
    for _name in (
        "task_prerun",
        "task_postrun",
        "task_success",
        "task_failure",
        "task_retry",
        "task_revoked",
    ):
        getattr(signals, _name).connect(_noted(_name), weak=False)

SETTINGS = json.loads(os.environ.get("PROJ_SETTINGS", "{}"))
app = make_app(os.environ.get("PROJ_URL", "redis://localhost:1/0"), **SETTINGS)
