"""Attacks by name: each is refused, or ends in the morgue, and the neighbours run.

| attack | tests, beside those below |
|---|---|
| payloads: no JSON, deep JSON, pickle, YAML | `tests/worker/test_hostile_bytes.py` |
| payloads that are too large | `tests/store/test_hostile.py` |
| JSON that is not signed, another content type (S1) | `tests/worker/test_signed_payloads.py` |
| a message whose body is pickled | `tests/unit/test_broker_messages.py` |
| records of calls, leases, counters, numbers of shards that are none | `tests/fuzz/test_records.py` |
| a key of another type | `tests/store/test_wrong_types.py`; `tests/worker/test_damage.py` |
| announcements and remote control commands of somebody else | `tests/fuzz/test_messages.py` |
| keys of another queue, by the name of a queue or an id | `tests/store/test_hostile.py` |
| patterns (glob, Lua, regular expressions) in ids and searches | `tests/unit/test_fingerprints.py` |
| lines and colours in logs and on terminals, by ids, users and reasons | `tests/cli/test_tracking.py` |
| markup in ids, payloads, errors and names of trackers | `tests/web/test_hostile.py` |
| labels of metrics by names of queues | |
| a change from another site or scheme (S3), without the token (CSRF) | `tests/web/test_access.py` |
| a redirect to elsewhere, headers of an answer | `tests/web/test_changes.py` |
| files outside of the static ones, methods that change by a GET | |
| bodies that are too large, deep or no JSON; queries that are no text | `tests/web/test_access.py` |
| cursors, numbers, NaN and signs | |
| another host's name resolved to this machine, wrong passwords (S3) | `tests/web/test_access.py` |
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.control import Panel
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from celery_lowkiq import ordered_task
from celery_lowkiq.metrics.queues import QueueCollector
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.keys import channel, queue_key, shard_keys
from celery_lowkiq.web import make_app
from tests.fuzz.mutators import canaries
from tests.fuzz.node import Node
from tests.marks import first_often
from tests.waiting import eventually
from tests.web.conftest import LOCAL
from tests.web.pages import submit

#: The shard of ``orders`` that is attacked; the others are its neighbours.
HIT = shard_keys(ShardRef("orders", 0))


@pytest.fixture(scope="module")
def node(redis_server):
    node = Node(redis_server, poll_interval=0.2)
    node.redis.flushall()
    with node.engine:
        node.push("orders", first := node.ids("orders"))
        eventually(lambda: node.has_run(first))
        yield node
    node.app.close()


@pytest.fixture
def neighbours(node):
    """Jobs in the same shard, beside it, and of another queue: they run after each attack."""
    yield
    node.push("orders", orders := node.ids("orders"))
    node.push("calm", calm := node.ids("calm"))
    eventually(lambda: node.has_run(orders + calm), 20)
    assert not node.engine.host.stops


def plant(node, job_id, data, flag=b""):
    node.redis.hset(HIT["jobs"], job_id, b"1 %d%s %s" % (len(data), flag, data))
    node.redis.zadd(HIT["due"], {job_id: 1.0})


PAYLOADS = {
    "deep JSON": (b"[" * 60_000, "RecursionError"),
    "no JSON": (b"{'a': 1}", "JSONDecodeError"),
    "not a number": (b'{"a": NaN}', "NaN"),
    "a number of 5,000 digits": (b"1" * 5000, "digits"),
    "no UTF-8": (b'"\xff"', "UnicodeDecodeError"),
    "larger than allowed": (b'"%s"' % (b"x" * 2_000_000), "bytes"),
    "pickle": (None, "accept_content"),
    "YAML": (None, "accept_content"),
}


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize("attack", PAYLOADS)
def test_a_payload_that_means_harm_is_buried_with_the_reason(node, tmp_path, caplog, attack):
    data, reason = PAYLOADS[attack]
    if data is None:
        data = canaries(str(tmp_path / "canary"))[1 if attack == "pickle" else 2]
    job_id = f"harm {attack}"
    plant(node, job_id, data)
    error = eventually(lambda: node.redis.hget(HIT["dead_errors"], job_id))
    assert error.startswith(b"undecodable payload")
    assert reason in error.decode() + caplog.text
    assert repr(job_id) in caplog.text
    assert not (tmp_path / "canary").exists()


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize(
    "record",
    first_often(
        [b"", b"0" * 10, b"0123456789(.+)+$ no digits", b"\0" * 30, b"\xff" * 200, b"9" * 22 + b"[" * 50_000]
    ),
)
def test_a_record_of_a_call_that_is_none_ends_no_worker(node, record):
    """The number of the call was read without a look: its ValueError ended the worker."""
    job_id = b"call %d" % len(record)
    node.redis.zadd(HIT["calls"], {job_id + b"\0" + record: 0.0})
    plant(node, job_id, b'"x"', b"R")
    eventually(lambda: node.has_run([job_id.decode()]))


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize("epoch", first_often([b"9" * 18, b"-1", b"nan", b"x", b""]))
def test_a_lease_that_nobody_holds_is_taken_back(node, epoch):
    node.redis.hset(HIT["lease"], mapping={"owner": "ghost", "epoch": epoch, "counter": b"9" * 30})
    node.push("orders", stolen := node.ids("orders", [0]))
    eventually(lambda: node.has_run(stolen), 20)
    assert node.redis.hget(HIT["lease"], "owner") == b"me"


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize("shards", first_often(["0", "-1", "999999", "4>x", "1e3", "x" * 5000, "\xff"]))
def test_a_number_of_shards_that_is_none_is_not_followed(node, shards):
    key = queue_key("held")
    kept = node.redis.hgetall(key)
    node.redis.hset(key, mapping={"shards": shards, "format": "\0"})
    node.redis.delete(*(shard_keys(ShardRef("held", n))["meta"] for n in range(2)))
    node.push("calm", ids := node.ids("calm"))
    eventually(lambda: node.has_run(ids))
    node.redis.delete(key)
    if kept:
        node.redis.hset(key, mapping=kept)


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize(
    "message",
    first_often(["", "x", "0", "0 nan", "0 -inf", "-1 1", "99999999999 1", "0 1e999", "0 1 2", "\xff"]),
)
def test_an_announcement_of_somebody_else_is_taken_for_a_hint(node, message):
    node.redis.publish(channel("orders"), message)


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize(
    "given",
    first_often(
        [
            {"queue": None},
            {"queue": {"a": 1}},
            {"queue": ["orders", "t", "x"]},
            {"queue": "*"},
            {"queue": "orders", "ids": "*"},
            {"queue": "orders", "ids": [None]},
            {"queue": "orders", "ids": [["*"]]},
            {"queue": "orders", "ids": ["a\nb"]},
            {"queue": "orders", "everything": True},
        ]
    ),
)
@pytest.mark.parametrize("verb", ["requeue", "run_now"])
def test_a_misread_command_of_remote_control_changes_nothing(node, verb, given):
    node.push("orders", ids := node.ids("orders"), countdown=1000)
    state = SimpleNamespace(app=node.app, hostname="w@h", consumer=SimpleNamespace())
    assert "error" in Panel.data[f"lowkiq_{verb}"](state, **given)
    queue = node.inspector.queue("orders")
    assert all(queue.job(job_id).waiting for job_id in ids)
    queue.delete(ids)


NAMES = ["a{b", "a}b", "a b", "a\nb", "a\r\nDEL x", "a\0", "", "x" * 256, "ä", "\x7f"]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_queue_reaches_no_other_key(name):
    app = Celery("names", set_as_current=False)
    with pytest.raises(ConfigurationError, match="queue_name"):
        ordered_task(app=app, shared=False, name="task", queue_name=name)(lambda payloads_by_id: None)


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize(
    "job_id", first_often(["a\nb", "a\r\nDEL x", "a\0b", "", "x" * 257, "\x1b[2J", "\ud800", "\x85"])
)
def test_an_id_that_could_break_a_line_or_a_key_is_refused(node, job_id):
    with pytest.raises(InvalidCall):
        node.app.tasks["orders"].delay(job_id, "x")


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize(
    "pattern", first_often(["*", "?", "[a-z]", "%a", "%", ".*", "^", "}:jobs", "{orders:0}", "\\", "(1"])
)
def test_a_pattern_is_an_id_like_any_other(node, pattern):
    queue = node.inspector.queue("orders")
    node.push("orders", ids := node.ids("orders"), countdown=1000)
    node.push("orders", [pattern], countdown=1000)
    assert [job.id for job in queue.jobs("id", prefix=pattern).items] == [pattern]
    assert queue.pause(job_id=pattern)
    assert queue.delete([pattern]) == 1
    assert all(queue.job(job_id).waiting for job_id in ids)
    queue.resume(job_id=pattern)
    queue.delete(ids)


@pytest.mark.parametrize("verb", ["requeue", "reshard", "pause_migration"])
def test_a_command_of_remote_control_breaks_no_line_of_the_log(node, caplog, verb):
    state = SimpleNamespace(app=node.app, hostname="w@h", consumer=SimpleNamespace())
    assert "error" in Panel.data[f"lowkiq_{verb}"](state, queue="a\nERROR forged\x1b[2J")
    lines = eventually(lambda: [one.getMessage() for one in caplog.records if "forged" in one.getMessage()])
    assert all(line.isprintable() for line in lines)


def test_a_job_that_is_late_is_noticed(node, monkeypatch):
    monkeypatch.setattr("tests.fuzz.node.without_processor", lambda *pids: {})
    with pytest.raises(AssertionError, match="ran after"), node.in_time(ids := node.ids("calm")):
        node.push("calm", ids, countdown=1)


@pytest.mark.usefixtures("neighbours")
def test_ids_that_were_planted_break_no_line_of_the_log(node, caplog):
    plant(node, b"a\nERROR forged\x1b[2J\r", b"{")
    eventually(lambda: "forged" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    assert lines
    assert all(line.isprintable() for line in lines)


def test_the_name_of_a_queue_is_one_label_of_metrics(empty_redis):
    name = 'a"\\n,x="y\\'
    app = Celery("metrics", broker=empty_redis.url, set_as_current=False)

    # Tasks that other tests share.
    app.finalize()
    for shared in [one for one in app.tasks if not one.startswith("celery.")]:
        del app.tasks[shared]

    @ordered_task(app=app, shared=False, name="task", queue_name=name)
    def task(payloads_by_id):
        """Never runs."""

    registry = CollectorRegistry()
    registry.register(QueueCollector(app))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    queues = {
        sample.labels["queue"] for family in families for sample in family.samples if "queue" in sample.labels
    }
    assert queues == {name}
    app.close()


# -- the dashboard


@pytest.fixture
def browser(node):
    with TestClient(make_app(node.app), follow_redirects=False, **LOCAL) as browser:
        yield browser


OUTSIDE = [
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/%2e%2e/setup.cfg",
    "..%5capp.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
]


@pytest.mark.parametrize("path", [*OUTSIDE, "app.js%00.py", "....//app.py", "%252e%252e%252fapp.py"])
def test_static_files_are_all_that_is_read(browser, path):
    answer = browser.get(f"/static/{path}")
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text


@pytest.mark.parametrize(
    "back",
    ["/\r\nSet-Cookie: a=b", "/%0d%0aX: y", "/?a=\r\nX: y", "//evil.example", "/\\evil", "javascript:1"],
)
def test_a_redirect_is_a_path_of_ours(browser, back):
    form = {"token": submit(browser, "pause", queue="held").url and browser.cookies["lowkiq_token"]}
    form |= {"queue": "held", "action": "resume", "back": back}
    answer = browser.post("/change", data=form, headers={"origin": LOCAL["base_url"]})
    assert answer.status_code == 303
    assert re.fullmatch(r"/(?![/\\])[!-~]*", answer.headers["location"])
    assert not {"x", "set-cookie"} & set(answer.headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE"])
@pytest.mark.parametrize(
    "path", ["/change?queue=calm&action=pause", "/api/v1/changes?queue=calm&action=pause"]
)
def test_nothing_changes_but_by_a_post(node, browser, method, path):
    json_body = {"content-type": "application/json"}
    overrides = {"x-http-method-override": "POST", "x-method-override": "POST"}
    assert browser.request(method, path, headers=json_body).status_code == 405
    # A proxy may have sent these: without a password, the dashboard then serves nothing.
    assert browser.request(method, path, headers=json_body | overrides).status_code == 403
    assert not node.inspector.queue("calm").paused().queue


BODIES = {
    "deep": b'{"queue":' * 50_000,
    "a deep list": b"[" * 1_000_000,
    "a long number": b'{"queue":"calm","action":"pause","wait":%s}' % (b"9" * 5000),
    "not a number": b'{"queue":"calm","action":"pause","wait":NaN}',
    "endless": b'{"queue":"calm","action":"pause","wait":1e999}',
    "no text": b'{"queue":"\xff"}',
    "half a character": b'{"queue":"calm","action":"pause_ids","ids":["\\ud800"]}',
    "not an object": b'"calm"',
    "nothing": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_change_is_refused(node, browser, body):
    began = time.process_time()
    answer = browser.post("/api/v1/changes", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]
    assert time.process_time() - began < 1
    assert not node.inspector.queue("calm").paused().queue


CURSORS = [
    "x",
    "1.5",
    "nan a",
    "inf a",
    "-1e999 a",
    "1 \xff",
    "\0",
    "1 " + "x" * 900,
    "[1]",
    "*",
    "0x1 a",
    "a|b",
    "5" * 500,
]


@pytest.mark.parametrize(
    "path", ["jobs", "retries", "morgue", "processing", "paused_ids", "held_ids", "trackers"]
)
def test_a_cursor_that_was_made_up_is_refused_or_a_place(browser, path):
    for after in CURSORS:
        answer = browser.get(f"/api/v1/{path}", params={"queue": "orders", "after": after})
        assert answer.status_code in (200, 400), (after, answer.text)


@pytest.mark.parametrize(
    "given",
    [{"limit": text} for text in ("-1", "0", "501", "1e9", "nan", "\u0661", "9" * 400, "1_0", " 1")]
    + [{"minimum": text} for text in ("nan", "inf", "1e999", "x", "--1")]
    + [{"reverse": "2"}, {"by": "__class__"}, {"by": "score"}],
)
def test_a_number_that_makes_no_sense_is_refused(browser, given):
    answer = browser.get("/api/v1/jobs", params={"queue": "orders", **given})
    assert answer.status_code == 400
    assert browser.get("/queue", params={"queue": "orders", **given}).status_code == 400


@pytest.mark.parametrize("error", ["*a" * 30 + "b", "(a+)+$", "(?:a|a)*b", "[" * 999, "?" * 1999 + "*", "\\"])
def test_a_search_for_errors_is_no_regular_expression(node, browser, error):
    """Patterns with many stars kept the whole dashboard for minutes."""
    plant(node, "aaa", b"{")
    node.redis.hset(HIT["dead_errors"], "aaa", b"a" * 8000)
    began = time.process_time()
    for path in ("/failures", "/api/v1/matches"):
        answer = browser.get(path, params={"queue": "orders", "list": "morgue", "error": error})
        assert answer.status_code == 200, answer.text
    assert time.process_time() - began < 2


def test_the_files_that_the_table_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)`", __doc__)
    assert named
    assert all((Path(__file__).parents[2] / name).exists() for name in named)
