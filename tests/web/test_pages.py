"""What the pages show."""

from __future__ import annotations

import pytest

PAGES = [
    "/",
    "/redis",
    "/queue?queue=record",
    "/queue?queue=record&list=retries",
    "/queue?queue=record&list=morgue",
    "/queue?queue=record&list=processing",
    "/job?queue=record&id=42",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_on_an_empty_queue(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_overview_shows_each_queue_with_its_counts(browser, app):
    app.tasks["record"].delay("42", "x")
    text = browser.get("/").text
    assert 'href="/queue?queue=record"' in text
    assert 'href="/queue?queue=outcome"' in text


def test_a_waiting_job_is_in_its_listing_and_has_a_page(browser, app):
    app.tasks["record"].apply_async(("42", {"status": "paid"}), countdown=5430)
    listing = browser.get("/queue?queue=record").text
    assert 'href="/job?queue=record&amp;id=42"' in listing
    assert "in 1 h 30 min" in listing
    page = browser.get("/job?queue=record&id=42").text
    assert "&#34;status&#34;: &#34;paid&#34;" in page


def test_stats_are_in_lowkiqs_form(browser, app):
    app.tasks["record"].delay("42", "x")
    found = browser.get("/api/v1/stats").json()
    assert found["total"] == {"length": 1, "morgue_length": 0, "lag": pytest.approx(found["total"]["lag"])}
    assert set(found["by_worker"]) >= {"record", "batches", "gated", "outcome"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health(browser, path):
    assert browser.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path, status",
    [
        ("/queue?queue=nobody", 404),
        ("/queue", 400),
        ("/queue?queue=record&list=nothing", 400),
        ("/queue?queue=record&after=nonsense", 400),
        ("/queue?queue=record&by=id&after=0.99999999999999999999999", 400),
        ("/nowhere", 404),
    ],
)
def test_what_cannot_be_shown_is_said(browser, path, status):
    answer = browser.get(path)
    assert answer.status_code == status
    assert "<h1>" in answer.text
