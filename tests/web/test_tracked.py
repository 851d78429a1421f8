"""The pages of trackers, their JSON, and cancelling."""

from __future__ import annotations

import logging
import re

import pytest

from celery_lowkiq import track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.tracking import began, ended
from tests.web.pages import ORIGIN, token

NASTY = "<script>alert(1)</script>"


@pytest.fixture
def tracker(app):
    """Of three calls one has ended by an error, one runs, and one waits."""
    with track(f"import {NASTY}", app) as made:
        app.tasks["record"].perform_async(
            [{"id": n, "payload": {"row": NASTY}} for n in range(3)], tracker=made
        )
    first, second, _ = (call.task_id for call in made.jobs().items)
    runs = [began(made.id, call, 5, 1) for call in (first, second)]
    tracker_store = context_of(app).tracker_store
    tracker_store.update([runs[0]._replace(text="tried"), runs[1]])
    tracker_store.update([ended(runs[0], over=True, success=False, text=f"ValueError: {NASTY}")])
    tracker_store.progress(runs[1:], "half", 1, 2)
    return made


def test_groups_are_listed_with_their_counts(browser, tracker):
    page = browser.get("/trackers").text
    assert f'href="/tracker?id={tracker.id}"' in page
    assert '<progress max="3" value="1"' in page
    assert NASTY not in page
    assert "Nothing is tracked" not in page


def test_without_a_group_the_page_says_so(browser):
    assert "Nothing is tracked" in browser.get("/trackers").text


def test_a_group_with_its_calls(browser, tracker):
    page = browser.get(f"/tracker?id={tracker.id}").text
    assert '<strong class="num">1</strong> <span class="muted">of 3 calls have ended' in page
    assert 'data-refresh="1"' in page
    assert page.count("/job?queue=record") == 3
    assert "1 / 2" in page
    assert NASTY not in page


def test_calls_are_filtered_and_paged(browser, tracker):
    page = browser.get(f"/tracker?id={tracker.id}&state=error").text
    assert page.count("/job?queue=record") == 1
    assert "ValueError: &lt;script&gt;" in page
    first = browser.get(f"/tracker?id={tracker.id}&limit=2").text
    (following,) = re.findall(rf"/tracker\?id={tracker.id}&amp;after=([\w%]+)", first)
    assert browser.get(f"/tracker?id={tracker.id}&after={following}").text.count("/job?queue=record") == 1


def test_what_waits_is_cancelled_and_the_log_says_by_whom(browser, tracker, caplog):
    caplog.set_level(logging.INFO, "celery_lowkiq.audit")
    form = {"token": token(browser), "id": tracker.id}
    page = browser.post("/tracker/cancel", data=form, headers={"origin": ORIGIN}, follow_redirects=True)
    assert "cancelled" in page.text
    assert "Cancel waiting calls" not in page.text
    assert tracker.counts().failed == 1
    assert any("cancel done" in line and "jobs=1" in line for line in caplog.messages)


def test_cancelling_needs_the_forms_token_and_the_right(browser, visit, tracker):
    assert browser.post("/tracker/cancel", data={"id": tracker.id}).status_code == 403
    reader = visit(read_only=True)
    assert "Cancel waiting calls" not in reader.get(f"/tracker?id={tracker.id}").text
    assert reader.post("/tracker/cancel", data={"id": tracker.id}).status_code == 403
    assert not tracker.view().cancelled


def test_json(browser, tracker):
    (group,) = browser.get("/api/v1/trackers").json()["items"]
    assert group == browser.get(f"/api/v1/trackers/{tracker.id}").json()
    counts = {"enqueued": 1, "working": 1, "finished": 0, "failed": 0, "error": 1, "total": 3}
    assert (group["counts"], group["closed"], group["done"]) == (counts, True, False)
    calls = browser.get(f"/api/v1/trackers/{tracker.id}/calls?limit=2").json()
    assert [call["id"] for call in calls["items"]] == ["0", "1"]
    (last,) = browser.get(f"/api/v1/trackers/{tracker.id}/calls?after={calls['next']}").json()["items"]
    assert (last["id"], last["state"], last["messages"]) == ("2", "enqueued", [])
    assert calls["items"][0]["messages"][-1]["text"] == f"ValueError: {NASTY}"
    assert (calls["items"][1]["current"], calls["items"][1]["total"]) == (1, 2)


def test_cancelling_by_the_api(browser, tracker):
    group = browser.delete(f"/api/v1/trackers/{tracker.id}").json()
    assert (group["cancelled"], group["counts"]["failed"]) == (True, 1)


NOBODY = "0" * 32


@pytest.mark.parametrize(
    "path, status",
    [
        ("/tracker", 400),
        ("/tracker?id=x", 400),
        (f"/tracker?id={NOBODY}", 404),
        ("/tracker?id={}&state=lost", 400),
        ("/api/v1/trackers/x", 400),
        (f"/api/v1/trackers/{NOBODY}", 404),
        ("/api/v1/trackers/{}/calls?state=lost", 400),
        ("/api/v1/trackers/{}/calls?after=x", 400),
        ("/api/v1/trackers?after=x", 400),
    ],
)
def test_what_cannot_be_shown_is_said(browser, tracker, path, status):
    assert browser.get(path.format(tracker.id)).status_code == status
