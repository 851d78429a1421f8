"""What forms change: asked about where it is dangerous, in steps, reported, cancellable."""

from __future__ import annotations

import html
import re
import threading
import time
from dataclasses import replace

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.models import Disposition, Settlement
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.store.client import Client
from tests.waiting import eventually
from tests.web.migrating import flipped
from tests.web.pages import ORIGIN, hidden_fields, submit, token


@pytest.fixture
def record(app):
    return app.tasks["record"]


def test_all_waiting_jobs_are_made_due(browser, record):
    for number in range(3):
        record.apply_async((str(number), "x"), countdown=3600)
    page = submit(browser, "run_now_all", confirmed="1", back="/queue?queue=record")
    assert "<strong>Run all now</strong>: made due 3 waiting jobs of queue record" in page.text
    assert page.url.query == f"queue=record&did={page.url.params['did']}".encode()
    assert record.ordered_queue.jobs("perform_in", minimum=4e9).items == ()
    assert record.ordered_queue.stats().lag > 0


@pytest.mark.parametrize(
    "action, question",
    [
        ("run_now_all", "Run all now: 3 waiting jobs of queue record?"),
        ("requeue_all", "Requeue all: 2 dead jobs of queue record?"),
        ("resume_all_ids", "Resume all ids: 1 paused id of queue record?"),
    ],
)
def test_what_changes_all_is_asked_about_with_the_count(browser, record, action, question):
    for number in range(5):
        record.apply_async((str(number), "x"), countdown=3600)
    record.ordered_queue.bury(["3", "4"])
    record.ordered_queue.pause_ids(["1"])
    page = submit(browser, action)
    assert question in page.text
    assert len(record.ordered_queue.jobs("perform_in", minimum=time.time() + 60).items) == 3
    stats = record.ordered_queue.stats()
    assert (stats.morgue_length, stats.paused_ids) == (2, 1)


def test_nothing_is_offered_that_a_move_refuses(browser, app, record):
    record.apply_async(("1", {"a": 1}), countdown=3600)
    record.apply_async(("2", {"a": 1}), countdown=3600)
    record.ordered_queue.bury(["2"])
    pages = [f"/queue?queue=record&list={one}" for one in ("jobs", "retries", "morgue", "shards", "paused")]
    pages += [f"/job?queue=record&id={one}" for one in (1, 2)] + ["/failures?queue=record&error=*"]

    def actions():
        forms = (browser.get(path).text.split("</form>") for path in pages)
        fields = [hidden_fields(form) for page in forms for form in page]
        texts = "".join(browser.get(path).text for path in pages)
        return {one["action"] for one in fields if "action" in one} | set(
            re.findall(r'name="action" value="(\w+)"', texts)
        )

    assert {"run_now_all", "run_now", "bury", "requeue_all", "pause_shard", "reshard"} <= actions()
    flipped(app, record.ordered_queue, 12)
    assert actions() == {"pause", "pause_migration", "abort_migration"}
    assert (
        "is moving from 8 to 12 shards" in submit(browser, "run_now_all", confirmed="1", back=pages[0]).text
    )


def test_a_dangerous_action_is_asked_about_first(browser, record):
    for job_id in ("a", "b", "c"):
        record.delay(job_id, "x")
    asked = submit(browser, "delete", "a", "b")
    assert "Delete: 2 waiting jobs of queue record?" in asked.text
    assert record.ordered_queue.stats().length == 3
    assert hidden_fields(asked.text)["confirmed"] == "1"
    submit(browser, "delete", "a", "b", confirmed="1")
    assert [job.id for job in record.ordered_queue.jobs().items] == ["c"]


def test_all_that_match_are_counted_first(browser, record):
    for job_id in ("a", "b", "c"):
        record.delay(job_id, "x")
    record.ordered_queue.bury(["a", "b"])
    asked = submit(browser, "requeue_matching", error="moved*")
    assert "Requeue all that match: 2 dead jobs of queue record?" in asked.text
    assert "2 dead jobs match: searched 2 of 2." in asked.text
    assert record.ordered_queue.stats().morgue_length == 2
    assert hidden_fields(asked.text)["error"] == "moved*"
    done = submit(browser, "requeue_matching", error="moved*", confirmed="1", back="/queue?queue=record")
    assert "requeued 2 dead jobs of queue record" in done.text
    assert record.ordered_queue.stats().morgue_length == 0


def test_what_matches_is_changed_up_to_a_limit_at_a_rate(browser, record):
    for job_id in ("a", "b", "c"):
        record.delay(job_id, "x")
    record.ordered_queue.bury(["a", "b", "c"])
    asked = submit(browser, "requeue_matching", error="moved*").text
    assert "Maximum number of jobs" in asked
    assert "Maximum rate, as 50/s or 600/m" in asked
    given = {"error": "moved*", "confirmed": "1", "back": "/queue?queue=record"}
    assert "limit=&#39;x&#39; is invalid" in submit(browser, "requeue_matching", **given, limit="x").text
    done = submit(browser, "requeue_matching", **given, limit="2", rate="600/s").text
    assert "requeued 2 dead jobs of queue record" in done
    assert (
        "requeued 1 dead job of queue record"
        in submit(browser, "requeue_matching", **given, limit="", rate="").text
    )


@pytest.mark.parametrize(
    "action, fields, error",
    [
        ("delete", {}, "no job is selected"),
        ("requeue_matching", {"since": "yesterday"}, "since='yesterday' is invalid"),
        ("requeue_matching", {"error": "x", "rate": "fast", "confirmed": "1"}, "rate='fast' is invalid"),
        ("reshard", {"shards": "many"}, "shards='many' is invalid"),
    ],
)
def test_an_invalid_form_leads_back_to_its_page_with_the_error(browser, record, action, fields, error):
    record.apply_async(("1", "x"), countdown=1000)
    answer = submit(browser, action, back="/queue?queue=record&prefix=1", **fields)
    assert answer.status_code == 200
    assert error in html.unescape(answer.text)
    assert 'name="prefix" value="1"' in answer.text
    assert "back=" not in answer.text
    assert "refused=" not in answer.text


@pytest.mark.parametrize(
    "value, error",
    [
        ('{"open": ', "value is invalid: expected JSON"),
        ('{"password": "[redacted]"}', "expected a payload without &#39;[redacted]&#39;"),
        ('"' + "x" * 70_000 + '"', "bytes"),
    ],
)
@pytest.mark.parametrize("dead", [False, True])
def test_a_payload_that_is_refused_stays_in_the_editor(browser, record, value, error, dead):
    record.apply_async(("1", {"a": 1}), countdown=1000)
    if dead:
        record.ordered_queue.bury(["1"])
    place = "dead" if dead else "waiting"
    (payload,) = browser.get("/api/v1/job?queue=record&id=1").json()[place]["payloads"]
    action = "edit_dead_payload" if dead else "edit_payload"
    answer = submit(browser, action, "1", mark=payload["mark"], value=value)
    assert answer.status_code == 400
    assert error in answer.text
    assert f">{html.escape(value, quote=True).replace('&quot;', '&#34;')}</textarea>" in answer.text
    assert hidden_fields(answer.text)["back"] == "/job?queue=record&id=1"


def test_a_draft_of_a_payload_that_is_gone_is_shown(browser, record):
    record.apply_async(("1", {"a": 1}), countdown=1000)
    answer = submit(browser, "edit_payload", "1", mark="0-0", value='{"mine": 1}')
    assert answer.status_code == 400
    assert "has no such payload any more" in answer.text
    assert "{&#34;mine&#34;: 1}" in answer.text


def test_what_is_stale_is_queued_up_by_force(browser, record):
    spec = record.queue_spec
    record.__dict__["queue_spec"] = replace(spec, policies=Policies(drop_stale=1000.0))
    queue = record.ordered_queue
    for score, disposition in ((1, Disposition.BURY), (2, Disposition.DONE)):
        record.apply_async(("a", score), score=score)
        end(record, disposition)
    assert "Force requeue" in browser.get("/job?queue=record&id=a").text
    submit(browser, "requeue", "a")
    assert queue.job("a").dead is not None
    assert "Force requeue: 1 dead job of queue record?" in submit(browser, "requeue_forced", "a").text
    submit(browser, "requeue_forced", "a", confirmed="1")
    assert queue.job("a").waiting is not None


def test_hold_is_offered_only_where_nothing_drops_payloads(browser, record):
    record.delay("a", 1)
    record.ordered_queue.bury(["a"])
    pages = ("/job?queue=record&id=a", "/queue?queue=record&list=morgue")
    assert ['value="hold"' in browser.get(page).text for page in pages] == [True, True]
    record.__dict__["queue_spec"] = replace(record.queue_spec, policies=Policies(keep=1))
    assert ['value="hold"' in browser.get(page).text for page in pages] == [False, False]


def end(task, disposition):
    """Claim what is due and end it so, as a worker would."""
    store, spec = context_of(task.app).store, task.queue_spec
    for shard in spec.shard_refs():
        lease = store.acquire(spec, shard, "tester", store.observe([shard])[0], 0)
        claim = store.claim(spec, lease, 1)
        store.settle(spec, lease, [Settlement(job.id, claim.number, disposition) for job in claim.jobs])
        store.release(lease)


def test_a_long_action_is_watched_and_cancelled(browser, record, impatient, monkeypatch):
    go, steps = threading.Event(), []

    def slow(self, progress):
        for count in range(1, 1000):
            steps.append(count)
            progress(count)
            assert go.wait(10) or count == 1
        return 999

    monkeypatch.setattr(OrderedQueue, "run_now_all", slow)
    page = submit(browser, "run_now_all", confirmed="1")
    operation = page.url.params["id"]
    assert "Cancel" in page.text
    assert "running" in page.text
    form = {"token": token(browser), "id": operation}
    browser.post("/cancel", data=form, headers={"origin": ORIGIN})
    go.set()
    text = eventually(
        lambda: t if "cancelled" in (t := browser.get(f"/operation?id={operation}").text) else ""
    )
    assert "stays done" in text
    assert len(steps) < 999


def test_who_cancels_in_the_last_step_is_told_that_all_was_done(browser, record, impatient, monkeypatch):
    record.apply_async(("1", "x"), countdown=3600)
    go, original = threading.Event(), Client.call

    def slow(self, call):
        if call.script.name == "run_now":
            assert go.wait(10)
        return original(self, call)

    monkeypatch.setattr(Client, "call", slow)
    operation = submit(browser, "run_now", "1").url.params["id"]
    assert browser.delete(f"/api/v1/operations/{operation}").json()["state"] == "running"
    go.set()
    path = f"/api/v1/operations/{operation}"
    found = eventually(lambda: one if (one := browser.get(path).json())["state"] != "running" else None)
    assert (found["state"], found["count"]) == ("done", 1)


def test_what_goes_wrong_is_reported(browser, app, monkeypatch):
    def broken(self, progress):
        raise OSError("<b>")

    monkeypatch.setattr(OrderedQueue, "run_now_all", broken)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    page = submit(browser, "run_now_all", confirmed="1")
    assert "failed" in page.text
    assert "<b>" not in page.text


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "/\n", ""])
def test_a_form_cannot_send_people_elsewhere(browser, back):
    page = submit(browser, "run_now_all", confirmed="1", back=back)
    assert page.url.host == "localhost"
    assert page.url.path == "/"


def test_each_change_leaves_lines_in_the_log(browser, record, caplog):
    caplog.set_level("INFO", "celery_lowkiq.audit")
    record.delay("a\u2028b", "x")
    submit(browser, "delete", "a\u2028b", confirmed="1")
    lines = [line.getMessage() for line in caplog.records if line.name == "celery_lowkiq.audit"]
    assert lines == [
        "delete begins: user='local' from=127.0.0.1 queue='record' ids=['a\\u2028b']",
        "delete done: user='local' from=127.0.0.1 queue='record' ids=['a\\u2028b'] jobs=1",
    ]


def test_a_change_of_all_that_match_leaves_the_filter_in_the_log(browser, record, caplog):
    caplog.set_level("INFO", "celery_lowkiq.audit")
    record.apply_async(("42", "x"), countdown=100)
    record.ordered_queue.bury(["42"])
    submit(browser, "delete_dead_matching", error="moved*", since="2h", confirmed="1", reason="spilt\n")
    lines = [line.getMessage() for line in caplog.records if line.name == "celery_lowkiq.audit"]
    words = (
        "user='local' from=127.0.0.1 queue='record' filter={'error': 'moved*', 'since': '2h'} reason='spilt'"
    )
    assert lines == [f"delete_dead_matching begins: {words}", f"delete_dead_matching done: {words} jobs=1"]


def test_who_cancels_is_in_the_log(visit, impatient, monkeypatch, caplog):
    caplog.set_level("INFO", "celery_lowkiq.audit")
    go, browser = threading.Event(), visit(user_header="x-user", trusted_proxies=["127.0.0.1"])

    def slow(self, progress):
        assert go.wait(10)
        return 0

    monkeypatch.setattr(OrderedQueue, "run_now_all", slow)
    started = browser.post(
        "/api/v1/changes",
        json={"queue": "record", "action": "run_now_all"},
        headers={"x-user": "anna"},
    ).json()
    path, carla = f"/api/v1/operations/{started['id']}", {"x-user": "carla"}
    browser.delete(path, headers={"x-user": "boris"})
    browser.get("/operations", headers=carla)
    form = {"token": browser.cookies["lowkiq_token"], "id": started["id"]}
    browser.post("/cancel", data=form, headers=carla)
    go.set()
    eventually(lambda: browser.get(path, headers=carla).json()["state"] != "running")
    browser.delete(path, headers=carla)
    lines = [line.getMessage() for line in caplog.records if "to be cancelled" in line.getMessage()]
    words = "run_now_all of 'anna' is to be cancelled: user='%s' from=127.0.0.1 queue='record'"
    assert lines == [words % "boris", words % "carla"]
