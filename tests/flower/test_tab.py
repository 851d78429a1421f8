"""The tab that we add to Flower."""

from __future__ import annotations

import re

import pytest

from celery_lowkiq.flower.tab import done, with_tab
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.rules.text import TERMS
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations
from tests.flower.processes import flower
from tests.waiting import eventually

EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture
def outcome(app, site):
    """A queue with dead jobs, one of them of ill will, and empty afterwards."""
    task = app.tasks["outcome"]
    for job_id in ("dead-1", "dead-2", EVIL):
        task.delay(job_id, "fail")
    eventually(lambda: task.ordered_queue.stats().morgue_length == 3)
    yield task.ordered_queue
    task.ordered_queue.resume()
    eventually(lambda: task.ordered_queue.stats().length == task.ordered_queue.stats().busy == 0)
    task.ordered_queue.delete_dead_all()


def counts(site):
    """What the API tells of each queue."""
    return {queue["name"]: queue["stats"] for queue in site.json("/api/ordered")["queues"]}


def test_every_page_has_the_tab(site):
    for path in ("/tasks", "/ordered", "/ordered/queue?queue=record"):
        text = site.get(path)
        assert text.index("Broker") < text.index('href="/ordered"') < text.index("Documentation")


def test_the_list_shows_what_an_error_says_and_not_the_way_to_it(site, outcome):
    """F1: a traceback is stored by default."""
    text = site.get("/ordered/queue?queue=outcome")
    assert "<td>ValueError: as asked</td>" in text
    assert "Traceback" not in text


def test_all_queues_with_their_counts(site, outcome):
    text = site.get("/ordered")
    for name in ("record", "batches", "gated", "outcome"):
        assert f'href="/ordered/queue?queue={name}"' in text
    assert counts(site)["outcome"]["morgue_length"] == 3


def test_a_queue_that_moves_to_other_shards_is_marked(site, app):
    queue, store = app.tasks["batches"].ordered_queue, context_of(app).store
    migrations, former = Migrations(store.client, queue.name), queue.stored_spec().shards
    assert migrations.begin(former + 1)
    queue.pause_migration()
    migrations.begin_phase(migrations.read(), Phase.FLIP)
    while queue.migration().phase is Phase.FLIP:
        store.mover(queue.spec).turn()
    assert f"resharding {former} → {former + 1}" in site.get("/ordered")
    queue.resume_migration()
    queue.reshard(former + 1)
    queue.reshard(former)
    assert "resharding" not in site.get("/ordered")


@pytest.fixture
def damage(app):
    """A shard of the queue ``batches`` that has a key of another type."""
    (shard, *_) = app.tasks["batches"].queue_spec.shard_refs()
    client, key = context_of(app).store.client.servers.redis, shard_keys(shard)["dead"]
    client.set(key, "planted")
    yield shard
    client.delete(key)


def test_other_queues_are_shown_beside_a_damaged_one(site, damage):
    """O6: a key of another type made an error of the page and of the figures of all queues."""
    text = site.get("/ordered")
    assert 'href="/ordered/queue?queue=record"' in text
    assert f"shard {damage} is damaged: " in text
    assert counts(site)["record"]["morgue_length"] == 0
    assert "lowkiq repair batches" in site.json("/api/ordered")["damaged"]["batches"]


def test_numbers_end_at_the_right_and_times_are_those_of_the_dashboard(site, outcome):
    """F9: times had microseconds and another time zone, and numbers began at the left."""
    text = site.get("/ordered")
    assert text.count('<th class="text-end"') == 12
    assert f'title="{TERMS["lag"]}">Lag</th>' in text
    assert text.count('<td class="text-end">') == 12 * text.count("/ordered/queue?queue=")
    page = site.get("/ordered/queue?queue=outcome")
    died = r'<td><time datetime="[\dT:-]+Z" title="[\d-]+ [\d:]+ UTC">(?:now|.+ s ago)</time></td>'
    assert len(re.findall(died, page)) == 3


def test_what_comes_from_outside_is_text(site, outcome):
    text = site.get("/ordered/queue?queue=outcome")
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in text


def test_a_dead_job_is_queued_up_again(site, outcome):
    answer = site.act("outcome", "requeue", id=EVIL)
    assert (answer.status, answer.headers["Location"]) == (
        302,
        "/ordered/queue?queue=outcome&did=requeue&count=1",
    )
    assert "Requeued 1 dead job of queue outcome" in site.get(answer.headers["Location"])
    eventually(lambda: outcome.stats().failed >= 3 * 2 + 1)


def test_the_log_tells_who_it_was(site, outcome, directory):
    site.act("outcome", "requeue", id="dead-1")
    said = "requeue done: user='ops' from='127.0.0.1 by Flower' queue='outcome' ids=['dead-1'] jobs=1"
    eventually(lambda: said in (directory / "flower.log").read_text())


def test_all_dead_jobs_are_queued_up_while_the_queue_is_paused(site, outcome):
    assert site.act("outcome", "pause").status == 302
    assert outcome.paused().queue is not None
    assert "The queue was paused</strong> <time" in site.get("/ordered/queue?queue=outcome")
    assert site.act("outcome", "requeue_all").headers["Location"].endswith("count=3")
    assert (outcome.stats().length, outcome.stats().morgue_length) == (3, 0)
    assert site.act("outcome", "run_now_all").status == 302
    assert site.act("outcome", "resume").status == 302
    assert outcome.paused().queue is None


@pytest.mark.parametrize("path, status", [("queue?queue=nothing", 404), ("queue", 400), ("elsewhere", 404)])
def test_what_is_not_there(site, path, status):
    assert site.ask(f"/ordered/{path}").status == status


def test_an_unknown_action_is_refused(site):
    answer = site.act("outcome", "destroy")
    assert answer.status == 400
    assert "'destroy'" in answer.text


def test_nothing_is_done_without_the_token(site, outcome):
    form = {"queue": "outcome", "action": "requeue_all"}
    assert site.ask("/ordered/action", form).status == 403
    assert site.ask("/ordered/action", {**form, "_xsrf": "a" * 32}).status == 403
    assert site.ask("/ordered/action?queue=outcome&action=requeue-all").status == 405
    assert outcome.stats().morgue_length == 3


@pytest.mark.parametrize("user", ["", "ops:wrong"])
@pytest.mark.parametrize("path", ["/ordered", "/ordered/queue?queue=record", "/api/ordered"])
def test_nothing_is_shown_to_strangers(site, user, path):
    assert type(site)(site.url, user).ask(path).status == 401


def test_nothing_is_done_by_strangers(site):
    assert type(site)(site.url, "").ask("/ordered/action", {"queue": "record"}).status in (401, 403)


def test_a_flower_without_authentication_shows_and_does_nothing(site, env, outcome, tmp_path, pytestconfig):
    conf = pytestconfig.rootpath / "tests" / "flower" / "conf.py"
    with flower(tmp_path, "flower", f"--conf={conf}", "--url-prefix=ops", user="", **env) as other:
        page = other.get("/ops/ordered/queue?queue=outcome")
        assert "Actions need a Flower with authentication" in page
        assert '<button class="btn' not in page
        assert 'href="/ops/ordered"' in page
        assert other.ask("/ops/ordered/action", {"queue": "outcome", "action": "requeue_all"}).status == 401
    assert outcome.stats().morgue_length == 3


def test_a_bar_that_we_do_not_know_stays_as_it_is(caplog):
    assert with_tab("<ul></ul>") == "<ul></ul>"
    assert "without a tab" in caplog.text


@pytest.mark.parametrize(
    "did, count, said",
    [
        ("requeue", "1200", "Requeued 1200 dead jobs of queue orders"),
        ("pause", "1", "Paused queue orders"),
        ("pause", "0", "Queue orders: paused before"),
        ("delete", "1", ""),
        ("evil", "1", ""),
        ("requeue", "<b>", ""),
    ],
)
def test_only_actions_say_something(did, count, said):
    assert done("orders", did, count) == said
