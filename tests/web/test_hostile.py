"""Ids, payloads and errors that mean harm are shown as the data they are, on every page."""

from __future__ import annotations

import base64
import html
import json
import re
import time

import pytest

from celery_lowkiq import track
from celery_lowkiq.rules.models import ShardRef, shard_of
from celery_lowkiq.store.keys import shard_keys
from tests.traps import Trap, trap
from tests.web.pages import read_plain, submit

IDS = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "../../redis",
    "a/b?c=d&e=f#g%2e%2e",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egpj.exe",
    "סדר-42",
    "🫖" * 60,
    "x" * 256,
    "&amp;&lt;",
    " ",
]
PAYLOADS = {
    "script": "</pre><script>alert(1)</script>",
    "template": "{{ config }}",
    "right to left": "\u202e\u2066evil\u200f",
    "nul": "a\x00b\x1b[31m",
    "surrogate": "\ud800",
    "one megabyte": "<b>" * 300_000,
    "deep": json.loads("[" * 400 + "]" * 400),
}


@pytest.fixture
def settings(settings):
    return {**settings, "lowkiq_max_payload_bytes": 1024 * 1024, "accept_content": ["json", "pickle"]}


def plant(client, queue, job_id, data, error=None):
    """A waiting job whose payload no call would have let pass."""
    keys = shard_keys(ShardRef(queue.name, shard_of(job_id, queue.spec.shards)))
    client.zadd(keys["due"], {job_id: time.time() + 1000})
    client.hset(keys["jobs"], job_id, b"1 %d %s" % (len(data), data))
    if error is not None:
        client.zadd(keys["failed"], {job_id: 0})
        client.hset(keys["errors"], job_id, error)


def is_harmless(page):
    """Nothing that came from outside is markup, and the page stays small."""
    assert page.status_code == 200, page.text[:2000]
    scripts = re.findall(r"<script[^>]*>", page.text)
    assert all(re.search(r'src="/static/(app|theme|times)\.js\?', script) for script in scripts)
    assert not re.search(r"<(img|b)[ >]", page.text)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200f]", re.sub(r'value="[^"]*"', "", page.text))
    assert len(page.content) < 4_000_000


@pytest.mark.parametrize("job_id", IDS)
def test_hostile_ids(browser, record, job_id):
    record.apply_async((job_id, "x"), countdown=1000)
    dead = record.ordered_queue
    for listing in ("/queue?queue=record", "/queue?queue=record&by=id"):
        page = browser.get(listing)
        is_harmless(page)
        (link,) = re.findall(r'class="id" href="([^"]*)"', page.text)
        shown = browser.get(html.unescape(link))
        is_harmless(shown)
        assert "waits for its time" in shown.text
    is_harmless(submit(browser, "bury", job_id))
    submit(browser, "bury", job_id, confirmed="1")
    assert [job.id for job in dead.morgue().items] == [job_id]
    is_harmless(browser.get("/queue?queue=record&list=morgue"))
    is_harmless(browser.get("/operations"))
    submit(browser, "pause_ids", job_id)
    is_harmless(browser.get("/queue?queue=record&list=paused"))


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_hostile_payloads(browser, record, client, payload):
    plant(client, record.ordered_queue, "1", json.dumps(payload).encode())
    for path in ("/queue?queue=record", "/job?queue=record&id=1"):
        is_harmless(browser.get(path))
    found = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"][0]
    assert found["cut"] or found["value"] == payload


@pytest.mark.parametrize("job_id", IDS)
def test_hostile_ids_and_names_of_tracked_calls(browser, app, record, job_id):
    with track(job_id[:200], app) as tracker:
        record.apply_async((job_id, {"text": job_id}), countdown=1000, tracker=tracker)
    for path in ("/trackers", f"/tracker?id={tracker.id}"):
        is_harmless(browser.get(path))
    (call,) = browser.get(f"/api/v1/trackers/{tracker.id}/calls").json()["items"]
    assert call["id"] == job_id


@pytest.fixture
def pickled(settings):
    settings["lowkiq_serializer"] = "pickle"


def test_a_tracked_payload_is_not_unpickled(pickled, browser, record, tmp_path):
    tracker = record.track([{"id": 1, "payload": Trap(tmp_path / "trace")}])
    is_harmless(browser.get(f"/tracker?id={tracker.id}"))
    assert browser.get(f"/api/v1/trackers/{tracker.id}/calls").json()["items"][0]["id"] == "1"
    assert not (tmp_path / "trace").exists()


def test_an_error_is_data_too(browser, record, client):
    error = "ValueError: </pre><script>alert(1)</script>\u202e".encode()
    plant(client, record.ordered_queue, "1", b'"x"', error)
    for path in ("/queue?queue=record&list=retries", "/job?queue=record&id=1"):
        page = browser.get(path)
        is_harmless(page)
        assert "&lt;/pre&gt;&lt;script&gt;" in page.text


def test_of_ten_megabytes_the_beginning_is_shown(browser, record, client):
    plant(client, record.ordered_queue, "1", b'"' + b"x" * 10_000_000 + b'"')
    page = browser.get("/job?queue=record&id=1")
    is_harmless(page)
    assert "the beginning of 9.5 MiB" in page.text
    assert len(page.content) < 100_000
    assert len(browser.get("/queue?queue=record").content) < 100_000


def test_a_payload_of_ten_megabytes_can_be_dropped(browser, record, client):
    plant(client, record.ordered_queue, "1", b'"' + b"x" * 10_000_000 + b'"')
    mark = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"][0]["mark"]
    submit(browser, "delete_payload", "1", mark=mark, confirmed="1")
    assert record.ordered_queue.stats().length == 0


def test_large_payloads_that_begin_alike_are_told_apart(browser, record):
    """They are of one size, too, and only the beginning of each is shown."""
    rows = "x" * 70_000
    for version in (1, 2, 3):
        record.apply_async(("1", {"rows": rows, "version": version}), score=version)
    payloads = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"]
    assert [(payload["cut"], payload["value"]) for payload in payloads] == [(True, None)] * 3
    submit(browser, "delete_payload", "1", mark=payloads[1]["mark"], confirmed="1")
    submit(browser, "edit_payload", "1", mark=payloads[2]["mark"], value='{"version": 4}')
    left = record.ordered_queue.job("1").waiting.payloads
    assert [payload.value["version"] for payload in left] == [1, 4]
    page = browser.get("/job?queue=record&id=1").text
    assert payloads[0]["mark"] in page
    assert page.count("the beginning of") == 1


def test_very_many_payloads_of_an_id_make_no_large_page(browser, record):
    record.perform_async([{"id": "1", "payload": [[number] * 3] * 800} for number in range(150)])
    page = browser.get("/job?queue=record&id=1")
    is_harmless(page)
    assert "of 150 payloads are shown" in page.text


def test_what_was_pickled_is_not_unpickled(browser, record, client, tmp_path):
    """Though a worker of this app would."""
    data = trap(tmp_path / "trace")
    plant(client, record.ordered_queue, "1", data)
    masked = [browser.get(path) for path in ("/queue?queue=record", "/job?queue=record&id=1")]
    for page in (*masked, plain := read_plain(browser, "1")):
        assert page.status_code == 200
        assert ("application/x-python-serialize" in page.text) is (page is plain)
    asked = {"queue": "record", "id": "1"}
    (payload,) = browser.post("/api/v1/job", json=asked).json()["waiting"]["payloads"]
    assert (payload["value"], base64.b64decode(payload["base64"])) == (None, data)
    (payload,) = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"]
    assert (payload["value"], payload["base64"], payload["redacted"]) == ("[redacted]", None, True)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"\x01", b"\x01a\0b\0c", b"", b"{", b"[" * 100_000, b"1" * 5000, b"NaN"]
)
def test_what_is_no_payload_is_shown_as_bytes(visit, record, client, data):
    plant(client, record.ordered_queue, "1", data)
    browser = visit()
    for path in ("/queue?queue=record", "/job?queue=record&id=1", "/api/v1/job?queue=record&id=1"):
        assert browser.get(path).status_code == 200


def test_an_edited_payload_is_json_or_nothing(browser, record):
    record.apply_async(("1", "x"), countdown=1000)
    mark = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"][0]["mark"]
    for value in ("{", "NaN", "[" * 100_000, '{"a":'):
        answer = submit(browser, "edit_payload", "1", mark=mark, value=value)
        assert answer.status_code == 400
        assert "expected JSON" in answer.text
    assert "not allowed" not in submit(browser, "edit_payload", "1", mark=mark, value='{"a": 1}').text
    assert record.ordered_queue.job("1").waiting.payloads[0].value == {"a": 1}


def test_a_payload_that_is_too_large_is_not_saved(app, visit, record):
    app.conf.lowkiq_max_payload_bytes = 10
    browser = visit()
    record.apply_async(("1", "x"), countdown=1000)
    mark = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"][0]["mark"]
    page = submit(browser, "edit_payload", "1", mark=mark, value='"more than ten bytes"')
    assert "expected at most 10" in page.text
