"""A queue that moves to another number of shards: begun by a form or the API, and its picture."""

from __future__ import annotations

import pytest

from celery_lowkiq.integration.actions import ACTIONS
from celery_lowkiq.rules.errors import MigrationAborted, NotAbortable, NotMigrating
from celery_lowkiq.rules.resharding import MigrationState, Phase, ShardProgress
from celery_lowkiq.store.resharding import Mover, MovingShards
from celery_lowkiq.web.charts import MAX_BARS, picture_of
from celery_lowkiq.web.errors import status_of
from tests.waiting import eventually
from tests.web.migrating import begun, flipped, in_redis, on_page
from tests.web.pages import hidden_fields, submit

PAGE = "/queue?queue=record"


@pytest.fixture
def record(app):
    """With jobs in each shard."""
    task = app.tasks["record"]
    for number in range(200):
        task.apply_async((str(number), "x"), countdown=3600)
    return task


@pytest.fixture
def queue(record):
    return record.ordered_queue


def test_the_form_asks_and_says_to_which_number(browser, queue):
    assert 'name="shards"' in browser.get(f"{PAGE}&list=shards").text
    asked = submit(browser, "reshard", shards="12")
    assert "Reshard: queue record to 12 shards?" in asked.text
    assert "The queue has 8 shards. 133 of 200 jobs, " in asked.text
    assert ACTIONS["reshard"].effect in asked.text
    assert hidden_fields(asked.text)["shards"] == "12"
    assert queue.stored_spec().shards == 8
    done = submit(browser, "reshard", shards="12", confirmed="1", back=PAGE)
    assert "<strong>Reshard</strong>: moved queue record to 12 shards" in done.text
    assert queue.stored_spec().shards == 12
    assert queue.stats().length == 200


def test_a_form_without_a_number_is_asked_for_it(browser, queue):
    asked = submit(browser, "reshard")
    assert "Reshard: 200 jobs of queue record?" in asked.text
    assert '<input name="shards" required>' in asked.text


@pytest.mark.parametrize("shards", ["0", "4097", "-1", "x", ""])
def test_a_number_that_no_queue_can_have_is_refused(browser, shards):
    answer = submit(browser, "reshard", shards=shards)
    assert answer.status_code == 400
    assert "expected a whole number from 1 to 4096" in answer.text


def test_a_long_move_leads_to_its_picture(browser, app, queue, impatient, monkeypatch):
    """Cancelling the operation lets others go on with the move."""
    flipped(app, queue, 12)
    monkeypatch.setattr(Mover, "turn", lambda _: False)
    page = submit(browser, "reshard", shards="12", confirmed="1")
    assert page.url.path == "/queue"
    assert "Resharding 8 → 12" in page.text
    (operation,) = browser.get("/api/v1/operations").json()["operations"]
    assert operation["state"] == "running"
    path = f"/api/v1/operations/{operation['id']}"
    browser.delete(path)
    eventually(lambda: browser.get(path).json()["state"] == "cancelled")
    assert queue.migration()


def test_the_page_shows_the_counts_of_redis(browser, app, record, queue):
    mover = flipped(app, queue, 12)
    for number in range(200, 260):
        record.apply_async((str(number), "x"), countdown=3600)
    found = on_page(browser.get(PAGE).text)
    assert found == in_redis(app, queue)
    assert len(found.left) == 8
    assert len(found.right) == 12
    assert sum(found.left.values()) + sum(found.right.values()) == 260
    assert any(found.right[str(shard)] for shard in range(8, 12))
    mover.turn()
    later = on_page(browser.get(PAGE).text)
    assert later == in_redis(app, queue) != found
    assert sum(later.left.values()) < sum(found.left.values())


def test_with_fewer_shards_too(browser, app, queue):
    flipped(app, queue, 3)
    found = on_page(browser.get(PAGE).text)
    assert found == in_redis(app, queue)
    assert (len(found.left), len(found.right)) == (8, 3)


def test_jobs_that_a_frozen_mover_has_taken_are_named(browser, app, queue, monkeypatch):
    mover = flipped(app, queue, 12)

    def freeze(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(MovingShards, "import_jobs", freeze)
    with pytest.raises(KeyboardInterrupt):
        mover.turn()
    transfers = sum(shard.transfers for shard in queue.migration().progress)
    text = browser.get(PAGE).text
    assert f"{transfers} transfers on the way, " in text
    found = on_page(text)
    assert found == in_redis(app, queue)
    assert 0 < sum(found.left.values()) + sum(found.right.values()) < 200


def test_before_the_shards_are_closed_all_jobs_are_to_be_sorted(browser, app, queue):
    begun(app, queue, 12)
    found = on_page(browser.get(PAGE).text)
    assert sum(found.left.values()) == 200
    assert set(found.right.values()) == {0}


def test_the_page_is_quiet_without_a_migration(browser, queue):
    text = browser.get(PAGE).text
    assert "Resharding" not in text
    assert 'data-refresh="3"' in text


def test_while_it_moves_no_other_number_can_be_chosen(browser, app, queue):
    flipped(app, queue, 12)
    text = browser.get(f"{PAGE}&list=shards").text
    assert 'name="shards"' not in text
    # Counts must be those of Redis within 2 s.
    assert 'data-refresh="0.7"' in text
    said = submit(browser, "reshard", shards="5", confirmed="1").text
    assert "from 8 to 12 shards" in said


def test_the_overview_marks_the_queue(browser, app, queue):
    assert "resharding" not in browser.get("/").text
    flipped(app, queue, 12)
    assert "resharding 8 → 12" in browser.get("/").text
    found = {one["name"]: one for one in browser.get("/api/v1/queues").json()["queues"]}
    assert (found["record"]["former_shards"], found["record"]["shards"]) == (8, 12)
    assert found["outcome"]["former_shards"] is None


def test_the_api_begins_it_and_tells_its_state(browser, app, queue):
    def migration():
        return browser.get("/api/v1/migration", params={"queue": "record"}).json()["migration"]

    assert migration() is None
    flipped(app, queue, 12)
    found = migration()
    assert (found["phase"], found["former"], found["shards"]) == ("move", 8, 12)
    counts = in_redis(app, queue)
    assert {str(one["index"]): one["moving"] for one in found["progress"][:8]} == counts.left
    body = {"queue": "record", "action": "reshard", "shards": 12, "wait": 30}
    done = browser.post("/api/v1/changes", json=body).json()
    assert (done["state"], done["count"]) == ("done", 200)
    assert migration() is None
    assert queue.stored_spec().shards == 12


def test_a_move_is_paused_and_resumed(browser, app, queue):
    """Jobs that may run in a shard that will be removed are in a bar, too."""
    mover = flipped(app, queue, 3)
    text = browser.get(PAGE).text
    assert "Pause the move" in text
    assert "paused the move of queue record" in submit(browser, "pause_migration", back=PAGE).text
    while mover.turn():
        pass
    text = browser.get(PAGE).text
    assert "jobs run where they are" in text
    found = on_page(text)
    # With those that will leave a shard that stays.
    assert sum(found.left.values()) > sum(found.left[str(shard)] for shard in range(3, 8)) > 0
    assert sum(found.left.values()) + sum(found.right.values()) == 200
    state = queue.migration()
    assert f"about {state.left} jobs left to move" in text
    assert f'<progress max="200" value="{200 - state.left}"' in text
    assert 0 < state.left < 200
    assert "8 of 8 old shards" not in text
    submit(browser, "resume_migration")
    assert "Pause the move" in browser.get(PAGE).text


def test_a_move_is_aborted(browser, app, queue):
    mover = flipped(app, queue, 12)
    assert "Abort the move" in browser.get(PAGE).text
    assert "Abort the move" in submit(browser, "abort_migration", back=PAGE).text
    said = submit(browser, "abort_migration", back=PAGE, confirmed="1").text
    assert "aborted the move of queue record" in said
    assert browser.get("/api/v1/operations").json()["operations"][0]["count"] == 1
    text = browser.get(PAGE).text
    assert "Resharding 12 → 8" in text
    assert "moves back" in text
    assert "Abort the move" not in text
    assert browser.get("/api/v1/migration?queue=record").json()["migration"]["aborted_at"] > 0
    while queue.migration():
        mover.turn()
    assert queue.stored_spec().shards == 8


def test_what_does_not_move_cannot_be_paused(browser, queue):
    assert "is not moving" in submit(browser, "pause_migration", back=PAGE).text
    for error in (NotMigrating("record"), MigrationAborted("record", 4), NotAbortable("record", 4)):
        assert status_of(error) == 409
    assert "Pause the move" not in browser.get(PAGE).text


def test_the_api_estimates_the_cost(browser, app, queue):
    found = browser.get("/api/v1/reshard_cost?queue=record&shards=16").json()
    assert (found["former"], found["shards"], found["jobs"], found["leaving"]) == (8, 16, 200, 100)
    assert browser.get("/api/v1/reshard_cost?queue=record&shards=0").status_code == 400
    assert browser.get("/api/v1/reshard_cost?queue=record").status_code == 400
    flipped(app, queue, 12)
    assert browser.get("/api/v1/reshard_cost?queue=record&shards=16").status_code == 409


@pytest.mark.parametrize("shards", [0, 4097, "12", None, True])
def test_the_api_refuses_a_wrong_number(browser, shards):
    body = {"queue": "record", "action": "reshard", "shards": shards}
    assert browser.post("/api/v1/changes", json=body).status_code == 400


def test_who_may_change_nothing_sees_the_picture_and_no_form(app, queue, visit):
    flipped(app, queue, 12)
    text = visit(read_only=True).get(f"{PAGE}&list=shards").text
    assert "Resharding 8 → 12" in text
    assert '<form method="post"' not in text


def test_many_shards_share_bars():
    counts = {"waiting": 3, "moving": 1, "processing": 0, "in_flight": 0, "transfers": 0, "transfer_bytes": 0}
    shards = tuple(ShardProgress(index, "100>4096", **counts) for index in range(4096))
    found = picture_of(MigrationState("q", 1, Phase.MOVE, 100, 4096, None, None, None, shards))
    assert len(found.left) <= MAX_BARS >= len(found.right)
    assert (found.left[0].shards, found.left[-1].shards) == ("0-2", "99")
    assert (found.unsorted, found.sorted) == (4096, 2 * 4096)
    assert sum(bar.count for bar in (*found.left, *found.right)) == 3 * 4096
