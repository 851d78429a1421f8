"""Pickles that nobody signed lie wherever Redis keeps payloads and records, and no reader decodes one.

Each command, page, endpoint, action and method of a queue is tried in an app that accepts pickle, with
``lowkiq_signing="require"``. The workers' side is in ``tests/worker/test_signing.py``.
"""

from __future__ import annotations

import io
import json
from contextlib import suppress

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner
from starlette.testclient import TestClient

from celery_lowkiq import track
from celery_lowkiq.cli.main import lowkiq
from celery_lowkiq.integration.actions import ACTIONS, DEAD_PAYLOAD, MARK, MIGRATION, RESHARD
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import mark_of
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.web import make_app as make_dashboard
from celery_lowkiq.web.app import ENDPOINTS, _routes
from tests.traps import Trap
from tests.web.pages import read_plain
from tests.worker.signing_proj import make_app

LATER = 3600
#: The ids of the traps by where they lie.
WAITING, RECORDED, RUNNING, DEAD = IDS = ("waiting", "recorded", "running", "dead")
QUEUES = ("pay", "refund", "receipt")
#: Pages of one id, and what there is not: an operation, matches without a filter.
JOB = ("/job", "/api/v1/job")
MISSING = {"/api/v1/operations/{id}", "/api/v1/matches", "/api/v1/migration", "/api/v1/reshard_cost"}
#: Commands that serve, or read no job, with the reason.
OTHERS = {"acl", "dev", "flower", "metrics", "web", "masters", "quiet", "unquiet", "audit", "nodes"}
IDS_TOO = [(name, "pay", *IDS) for name in ("run-now", "hold", "requeue")]
ENDINGS = [(name, "pay", *IDS, "--yes") for name in ("go-on", "sign", "bury", "delete")]
COMMANDS = [
    *(
        (name, "pay", *json_)
        for name in ("jobs", "morgue", "failures", "held")
        for json_ in ((), ("--json",))
    ),
    *(("job", queue, job_id, *json_) for queue in QUEUES for job_id in IDS for json_ in ((), ("--json",))),
    *(("why", "pay", job_id) for job_id in IDS),
    *IDS_TOO,
    ("run-now", "receipt", *IDS),
    ("run-now", "receipt", "--all", "--yes"),
    *ENDINGS,
    ("bury", "receipt", *IDS, "--yes"),
    ("delete", "receipt", *IDS, "--yes"),
    ("delete", "pay", "--morgue", "--all", "--yes"),
    ("pause", "pay"),
    ("paused", "pay"),
    ("resume", "pay"),
    ("push", "pay", "new", "1"),
    ("stats",),
    ("doctor",),
    ("repair", "pay", "--yes"),
    ("dump", "pay"),
    ("progress",),
    ("progress", "TRACKER"),
    ("progress", "TRACKER", "--state", "enqueued"),
    ("progress", "TRACKER", "--state", "enqueued", "--json"),
    ("cancel", "TRACKER", "--yes"),
    ("reshard", "pay", "3", "--dry-run"),
]

#: The app of the command line: ``-A tests.features.test_unverified_bytes:app``.
app = None


@pytest.fixture
def planted(empty_redis, tmp_path):
    """The operator's app, and the id of a tracker; no trap has been sprung at the end."""
    global app
    off = {"lowkiq_signing": "off", "lowkiq_signing_keys": None}
    forger = make_app(empty_redis.url, lowkiq_serializer="pickle", **off)
    forger.trap = Trap(tmp_path / "trace")
    with track("group", app=forger) as tracker:
        for name in QUEUES:
            leave_running(forger.tasks[name])
            plant(forger.tasks[name], tracker=tracker)
    app = make_app(empty_redis.url)
    app.forger = forger
    yield app, tracker.id
    for one in (app, forger):
        one.backend.remove_pending_result = lambda result: None
        context_of(one).store.close()
        one.close()
    assert not (tmp_path / "trace").exists()


def leave_running(task):
    task.apply_async((RUNNING, task.app.trap), ignore_result=True)
    store, shard = context_of(task.app).store, task.queue_spec.shard_of(RUNNING)
    lease = store.acquire(task.queue_spec, shard, "a@b", store.observe([shard])[0], 0)
    assert store.claim(task.queue_spec, lease, 1).jobs
    store.release(lease)


def plant(task, behind="", **tracker):
    """Leave a waiting, a recorded and a dead trap. Returns the ids of all, also of the one that runs."""
    trap, call = task.app.trap, {"ignore_result": True}
    waiting, recorded, dead = ids = [f"{job_id}{behind}" for job_id in (WAITING, RECORDED, DEAD)]
    task.apply_async((dead, trap), **call)
    assert task.ordered_queue.bury([dead]) == 1
    task.apply_async((waiting, trap), countdown=LATER, **tracker, **call)
    link = task.si(recorded, trap)
    task.apply_async((recorded, trap), countdown=LATER, headers={"by": trap}, link=link)
    return [*ids, RUNNING]


def test_all_commands_are_tried():
    assert {words[0] for words in COMMANDS} | OTHERS | {"load"} == set(lowkiq.list_commands(None))


def test_no_command_decodes(planted):
    _, tracker = planted
    for words in COMMANDS:
        given = [tracker if word == "TRACKER" else word for word in words]
        found = CliRunner().invoke(celery, ["-A", f"{__name__}:app", "lowkiq", *given], prog_name="celery")
        assert not found.exception or isinstance(found.exception, SystemExit), (words, found.exception)
        assert "Usage:" not in found.output, (words, found.output)


def test_no_load_decodes(planted):
    made, _ = planted
    dumped = {name: list(made.tasks[name].ordered_queue.dump()) for name in QUEUES}
    for name, lines in dumped.items():
        assert len(lines) > 2 + len(IDS)
        made.tasks[name].ordered_queue.load(io.BytesIO(b"".join(lines)), again=True)
    made.tasks["refund"].ordered_queue.load(io.BytesIO(b"".join(dumped["pay"])), renamed=True)


def test_no_method_of_a_queue_decodes(planted):
    made, tracker = planted
    for name in QUEUES:
        queue = made.tasks[name].ordered_queue
        for shown in (queue, queue.raw(), queue.raw(decoded=True), queue.masked(), queue.raw(True).masked()):
            found = [*shown.jobs().items, *shown.morgue().items, *shown.processing().items]
            assert sorted(job.id for job in found) == sorted(IDS)
            for payload in [payload for job in found for payload in job.payloads]:
                assert not payload.readable
                assert isinstance(payload.value, bytes)
    (*_, call) = Inspector(made).tracker(tracker).jobs().items
    assert isinstance(call.payload, str)


def test_no_action_decodes(planted):
    made, _ = planted
    moves = {name for name, action in ACTIONS.items() if action.scope in (RESHARD, MIGRATION)}
    done = {name: act(made, name) for name in ACTIONS if name not in moves}
    # Some actions find nothing to change here: no job has failed, and none is held.
    assert {name for name, count in done.items() if count} > {
        "run_now",
        "run_now_all",
        "requeue",
        "sign_dead",
    }
    assert done["delete_payload"] == done["edit_payload"] + 1 == 3
    # Last, because a queue that moves refuses the others.
    for name in sorted(moves, key="abort_migration".__eq__):
        act(made, name)


def act(made, name):
    """Plant traps, and do an action to them. Returns how many jobs it changed; 0 where it was refused."""
    action, count = ACTIONS[name], 0
    for queue in (made.tasks[each].ordered_queue for each in QUEUES):
        ids = plant(made.forger.tasks[queue.name], name) if action.scope.ids or not action.takes else IDS
        given = {"shard": 0, "shards": 3, "value": 1, "error": "hand"}
        if MARK in action.takes:
            is_dead = action.scope is DEAD_PAYLOAD
            ids = ids[2:3] if is_dead else ids[:1]
            places = queue.raw().job(ids[0])
            given["mark"] = mark_of((places.dead if is_dead else places.waiting).payloads[0])
        values = {one.name: given[one.name] for one in action.takes if one.name in given}
        with suppress(LowkiqError):
            count += action.run(queue, action.target(queue, ids if action.scope.ids else (), values))
    return count


def test_no_page_and_no_endpoint_decodes(planted):
    made, tracker = planted
    local = {"base_url": "http://localhost:5556", "client": ("127.0.0.1", 50000)}
    browser = TestClient(make_dashboard(made), **local)
    paths = {route.path for route in _routes() if "GET" in getattr(route, "methods", ())} - {"/operation"}
    assert {endpoint.route.path for endpoint in ENDPOINTS if endpoint.method == "GET"} < paths
    asked = [f"{path}?id={tracker if path == '/tracker' else DEAD}&queue=pay&prefix=w" for path in paths]
    for queue in ("pay", "receipt"):
        asked += [f"/queue?queue={queue}&list={name}" for name in ("jobs", "processing", "morgue")]
        asked += [f"{job}?queue={queue}&id={job_id}" for job in JOB for job_id in IDS]
        for job_id in IDS:
            assert read_plain(browser, job_id, queue).status_code == 200
            given = {"queue": queue, "id": job_id}
            assert browser.post("/api/v1/job", json=given).status_code == 200
    answers = {path: browser.get(path.replace("{id}", tracker)).status_code for path in asked}
    wrong = {path: status for path, status in answers.items() if status != 200}
    assert {path.partition("?")[0] for path in wrong} <= MISSING, wrong


def test_verified_pickles_are_decoded(planted):
    """What the other tests try is no app that decodes nothing."""
    made, _ = planted
    signer = make_app(made.conf.broker_url, lowkiq_serializer="pickle")
    signer.tasks["pay"].apply_async(("honest", {"a": (1, 2)}), countdown=LATER, ignore_result=True)
    queue = made.tasks["pay"].ordered_queue
    assert queue.job("honest").waiting.payloads[0].value == {"a": (1, 2)}
    words = ["-A", f"{__name__}:app", "lowkiq", "job", "pay", "honest", "--json"]
    found = CliRunner().invoke(celery, words, prog_name="celery")
    assert json.loads(found.stdout)["waiting"]["payloads"][0]["value"] == {"a": [1, 2]}
    context_of(signer).store.close()
    signer.close()
