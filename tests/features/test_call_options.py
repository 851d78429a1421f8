"""Options of a call, and changes of its message, mean what they mean for a plain task."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from celery import chain, group, signals, signature
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

#: A plain task, three with ``by=``, and one that gets payloads by id.
FORMS = ("look", "look in place", "look in process", "look awaited", "look at batch")
LATER = datetime.now(timezone.utc) + timedelta(days=1)
#: Each option whose value a run can see or that decides whether it runs; those that only route a message have
#: tests/unit/test_call_options.py.
OPTIONS = {
    "shadow": "in Flower",
    "countdown": 0.01,
    "eta": datetime.now(timezone.utc).isoformat(),
    "expires": LATER.isoformat(),
    "retry": False,
    "retry_policy": {"max_retries": 1},
    "priority": 20,
    "queue": "celery",
    "serializer": "json",
    "compression": "gzip",
    "delivery_mode": 1,
    "mandatory": False,
    "add_to_parent": False,
    "headers": {"tenant": "acme"},
    "ignore_result": True,
    "time_limit": 50,
    "soft_time_limit": 40.5,
    "root_id": "root",
    "parent_id": "parent",
    "group_id": "group",
    "group_index": 3,
    "argsrepr": "(hidden)",
    "kwargsrepr": "{hidden}",
    "replaced_task_nesting": 2,
    "stamped_headers": ["stamp"],
    "reply_to": "somewhere",
    "link": signature("add", args=(1,), immutable=False),
    "link_error": signature("add", args=(1, 1), immutable=True),
    "route_name": "route",
    "app_id": "another field of a message",
}
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: What a run of a batch shows in place of arguments.
OF_ARGUMENTS = {"argsrepr", "kwargsrepr"}


def are_seen_alike(features, ids, of_arguments=frozenset()):
    """Each form of task sees the same of its call. Returns what the plain one saw."""
    runs = [run for job_id in ids for run in features.wait_for("look", id=job_id)]
    texts = (UUID.sub("<uuid>", json.dumps(run)).replace(run["id"], "<id>") for run in runs)
    plain, *in_place, batch = map(json.loads, texts)
    assert in_place == [plain] * (len(FORMS) - 2)
    # The time of a batch is that of its job.
    del plain["request"]["eta"], batch["request"]["eta"]
    # A job has one time for all of its payloads.
    for name in (*of_arguments, "has_eta"):
        del plain["request"][name], batch["request"][name]
    assert batch == plain
    return plain


@pytest.fixture(scope="module")
def called(features):
    """The ids of the calls with each option, one of each form of task. They run while others are made."""
    ids = {option: [uuid4().hex for _ in FORMS] for option in OPTIONS}
    for option, value in OPTIONS.items():
        options = {option: value, **({"stamp": "s"} if option == "stamped_headers" else {})}
        for form, job_id in zip(FORMS, ids[option], strict=True):
            features.app.tasks[form].apply_async((job_id, {"n": 1}), **options)
    return ids


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_means_what_it_means_for_a_plain_task(features, called, option):
    are_seen_alike(features, called[option], OF_ARGUMENTS - {option})


def beat(task, args):
    entry = ScheduleEntry(
        "nightly", task.name, schedule(5), args=args, options={"queue": "celery"}, app=task.app
    )
    Scheduler(task.app, lazy=True).apply_async(entry, advance=False)


WAYS = {
    "delay": lambda task, args: task.delay(*args),
    "apply_async": lambda task, args: task.apply_async(args, countdown=60),
    "send_task": lambda task, args: task.app.send_task(task.name, args, countdown=60),
    "beat": beat,
    "signature": lambda task, args: task.s(*args).set(countdown=60).delay(),
    "group": lambda task, args: group([task.si(*args)], app=task.app).apply_async(countdown=60),
    "chain": lambda task, args: chain(task.si(*args), task.app.tasks["add"].si(1, 1)).apply_async(
        countdown=60
    ),
}
CHANGED = {
    "shadow": "in Flower",
    "expires": LATER.isoformat(),
    "eta": datetime.now(timezone.utc).isoformat(),
    "root_id": "root",
    "parent_id": "parent",
    "group": "group",
    "group_index": 3,
    "timelimit": [50, 40.5],
    "argsrepr": "(hidden)",
    "kwargsrepr": "{hidden}",
    "replaced_task_nesting": 2,
    "stamped_headers": ["stamp"],
    "stamps": {"stamp": "s"},
    "tenant": "acme",
    "ignore_result": True,
}


def change(headers, body, properties, **_):
    """Receiver of before_task_publish: changes what it may change in messages that ask for it."""
    args, kwargs, embed = body
    what = kwargs["payload"] if "payload" in kwargs else args[1]
    if what.pop("change", None):
        what["tenant"] = "acme"
        headers.update(CHANGED)
        properties["priority"] = 3
        embed["errbacks"] = [signature("add", args=(1, 1), immutable=True)]


@pytest.fixture(scope="module")
def changing():
    """The receiver is connected once, because Celery 5.5 calls none that is connected after a disconnect."""
    signals.before_task_publish.connect(change)
    yield
    signals.before_task_publish.disconnect(change)


@pytest.mark.usefixtures("changing")
@pytest.mark.parametrize("way", WAYS)
def test_what_a_receiver_changes_in_a_message_is_what_runs(features, new_id, way):
    ids = [new_id() for _ in FORMS]
    for form, job_id in zip(FORMS, ids, strict=True):
        WAYS[way](features.app.tasks[form], (job_id, {"n": 1, "change": True}))
    plain = are_seen_alike(features, ids)
    assert plain["what"] == {"n": 1, "tenant": "acme"}
    assert {"shadow": "in Flower", "argsrepr": "(hidden)"}.items() <= plain["request"].items()
    assert plain["request"]["headers"]["tenant"] == "acme"
