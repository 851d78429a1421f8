"""No page, endpoint or audit log shows an argument with the name of a secret, however it is passed."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from celery_lowkiq import ordered_task, track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.json_records import mark_of_bytes
from celery_lowkiq.integration.messages import masked_beginning
from celery_lowkiq.rules.redaction import load_beginning
from celery_lowkiq.web.auth import User

SECRET = "4111-1111"
#: More than a page and a tracker show.
LONG = "x" * 5000
#: Calls by id.
CALLS = {
    "by-position": ((SECRET,), {}),
    "long": ((SECRET + LONG,), {}),
    "before-long": ((SECRET, LONG), {}),
    "of-any-number": (("a card", "note", SECRET, LONG), {}),
    "by-name": ((), {"card": SECRET, "note": LONG}),
    "in-a-text": (("a card", json.dumps({"card": SECRET, "note": LONG})), {}),
}
PATHS = ("/queue?queue=charge", "/api/v1/jobs?queue=charge")
OF_ID = ("/job?queue=charge&id={}", "/api/v1/job?queue=charge&id={}", "/search?id={}")


@pytest.fixture
def charge(app):
    @ordered_task(app=app, shared=False, name="charge", by="order", shards=2)
    def charge(order, card="", note="", *cards):
        pass

    app.finalize()
    return app.tasks["charge"]


@pytest.fixture
def called(app, charge):
    with track("cards", app=app) as tracker:
        for job_id, (args, kwargs) in CALLS.items():
            charge.apply_async((job_id, *args), kwargs, countdown=1000, tracker=tracker)
    return tracker


def test_a_secret_argument_is_masked_before_it_is_cut(called, visit):
    viewer = visit(auth=lambda request: User("vera", "operator", sees_plain=False))
    paths = [*PATHS, f"/tracker?id={called.id}", f"/api/v1/trackers/{called.id}/calls"]
    paths += [path.format(job_id) for path in OF_ID for job_id in CALLS]
    for path in paths:
        text = viewer.get(path).text
        assert SECRET not in text, path
        assert "[redacted]" in text or "/search" in path, path


@pytest.mark.parametrize("action", ["edit_payload", "delete_payload"])
def test_the_audit_log_masks_by_the_form_of_the_call(charge, called, visit, action):
    browser = visit(auth=lambda request: User("olga"))
    for job_id in CALLS:
        (payload,) = charge.ordered_queue.raw().job(job_id).waiting.payloads
        fields = {"ids": [job_id], "mark": mark_of_bytes(payload.value), "wait": 10}
        if action == "edit_payload":
            fields["value"] = {"args": [job_id, f"{SECRET}0", "note"], "kwargs": {}}
        answer = browser.post("/api/v1/changes", json={"queue": "charge", "action": action, **fields})
        assert answer.json()["count"] == 1
    entries = browser.get("/api/v1/audit").json()["items"]
    assert len(entries) == 2 * len(CALLS)
    assert all("[redacted]" in entry["what"] for entry in entries)
    for path in ("/api/v1/audit", "/audit"):
        assert SECRET not in browser.get(path).text


def test_wherever_a_payload_is_cut(charge):
    form, redactor = charge.call_form, context_of(charge.app).settings.redactor
    call = {"args": ["1", SECRET, {"a": [1, 2.5, None]}, SECRET], "kwargs": {"card": SECRET}, "eta": 1.5}
    for text in (json.dumps(call), json.dumps(call, separators=(",", ":"), sort_keys=True)):
        for end in range(len(text)):
            assert SECRET[:3] not in masked_beginning(form, text[:end], redactor)
        whole = {**call, "args": ["1", "[redacted]", {"a": [1, 2.5, None]}, "[redacted]"]}
        whole["kwargs"] = {"card": "[redacted]"}
        assert json.loads(masked_beginning(form, text, redactor)) == whole


@pytest.mark.parametrize("text", ["", "]", "x", '{"a":1}]', '["a" "b"', "\x01type\0utf-8\0['4111']"])
def test_a_beginning_that_is_not_of_json_is_masked_whole(charge, text):
    redactor = context_of(charge.app).settings.redactor
    assert masked_beginning(charge.call_form, text, redactor) == "[redacted]"


@pytest.mark.parametrize(
    "text, value",
    [
        ('{"a":[1,{"b":"c', {"a": [1, {"b": "c"}]}),
        ('{"a":[1,{"b', {"a": [1, {}]}),
        ('["a\\u00e4\\u00', ["aä"]),
        ('["a\\', ["a"]),
        ("[12, 13", [12]),
        ("[true, fal", [True]),
        ('["{[,:"', ["{[,:"]),
        ('"\\ud83d\\ude0', "\ud83d"),
    ],
)
def test_a_beginning_has_what_is_whole_in_it(text, value):
    assert load_beginning(text) == value


def test_a_beginning_takes_linear_time():
    for text in ('["' + "\\" * 500_000, "[" + "1," * 200_000, '["' + "\\u00" * 200_000, '"a",' * 100_000):
        with suppress(ValueError):
            load_beginning(text)
