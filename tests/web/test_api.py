"""The JSON API: all that the pages can do."""

from __future__ import annotations

import json

import pytest

from celery_lowkiq.integration.actions import ACTIONS


@pytest.fixture
def record(app):
    return app.tasks["record"]


@pytest.fixture
def change(browser):
    """Change something of the queue ``record`` and wait for the end."""

    def change(action, **fields):
        answer = browser.post(
            "/api/v1/changes", json={"queue": "record", "action": action, "wait": 10, **fields}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    return change


def get(browser, path, **query):
    answer = browser.get(f"/api/v1{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_queues(browser, record):
    record.delay("1", "x")
    found = {queue["name"]: queue for queue in get(browser, "/queues")["queues"]}
    assert found["record"]["stats"]["length"] == 1
    assert found["record"]["shards"] == 8


def test_listings_are_pages(browser, record):
    for number in range(5):
        record.apply_async((str(number), {"n": number}), countdown=number)
    ids, after = [], None
    while True:
        page = get(browser, "/jobs", queue="record", limit=2, **({"after": after} if after else {}))
        ids += [job["id"] for job in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert ids == ["0", "1", "2", "3", "4"]


def test_jobs_of_paused_ids_are_held(browser, record, change):
    for job_id in ("1", "2"):
        record.delay(job_id, "x")
    change("pause_ids", ids=["1"])
    jobs = get(browser, "/jobs", queue="record")["items"]
    assert {job["id"]: job["paused"] for job in jobs} == {"1": True, "2": False}
    assert get(browser, "/job", queue="record", id="1")["waiting"]["paused"]


@pytest.mark.parametrize("listing", ["retries", "morgue", "processing"])
def test_other_listings(browser, listing):
    assert get(browser, f"/{listing}", queue="record") == {
        "items": [],
        "next": None,
        "unreachable": {},
        "searched": None,
        "total": None,
    }


def test_a_job_with_its_payloads(browser, record):
    record.apply_async(("1", {"a": [1, None]}), score=5)
    found = get(browser, "/job", queue="record", id="1")
    assert (found["processing"], found["dead"], found["tries"]) == (None, None, [])
    assert found["why"]["kind"] == "unowned"
    (payload,) = found["waiting"]["payloads"]
    assert (payload["value"], payload["score"], payload["cut"]) == ({"a": [1, None]}, 5, False)


def test_a_payload_is_edited_and_dropped(browser, record, change):
    record.apply_async(("1", "a"), score=1)
    record.apply_async(("1", "b"), score=2)

    def payloads():
        return get(browser, "/job", queue="record", id="1")["waiting"]["payloads"]

    first, second = payloads()
    assert change("edit_payload", ids=["1"], mark=first["mark"], value={"new": True})["count"] == 1
    assert change("delete_payload", ids=["1"], mark=second["mark"])["count"] == 1
    assert [(p["value"], p["score"]) for p in payloads()] == [({"new": True}, 1)]
    gone = change("delete_payload", ids=["1"], mark=second["mark"])
    assert gone["state"] == "failed"
    assert "no such payload" in gone["error"]


def test_pauses(browser, record, change):
    assert change("pause")["count"] == 1
    assert change("pause")["count"] == 0
    assert record.ordered_queue.paused().queue
    change("resume")
    change("pause_shard", shard=3)
    assert set(record.ordered_queue.paused().shards) == {3}
    change("resume_shard", shard=3)
    change("pause_ids", ids=["1", "2"])
    change("resume_ids", ids=["1"])
    assert [paused.id for paused in record.ordered_queue.paused_ids().items] == ["2"]
    assert change("resume_all_ids")["count"] == 1


def test_failures_and_the_jobs_that_match(browser, record, change):
    for job_id in ("1", "2"):
        record.apply_async((job_id, "x"), countdown=100)
    change("bury", ids=["1", "2"])
    (group,) = get(browser, "/failures", queue="record")["groups"]
    assert (group["error"], group["dead"]) == ("moved to the morgue by hand", 2)
    failure = group["fingerprint"]
    assert get(browser, "/failures", queue="record", failure=failure)["groups"] == [group]
    assert get(browser, "/failures", queue="record", failure="0")["groups"] == []
    found = get(browser, "/matches", queue="record", list="morgue", failure=failure)
    assert (found["count"], found["searched"], found["jobs"], sorted(found["ids"])) == (2, 2, 2, ["1", "2"])
    assert get(browser, "/matches", queue="record", list="retries", failure=failure)["count"] == 0
    assert change("requeue_matching", failure=failure, limit=1)["count"] == 1
    done = change("delete_dead_matching", error="moved*", since="1h", rate="100/s")
    assert (done["count"], done["total"]) == (1, 1)


def test_shards_and_paused_ids(browser, change):
    change("pause_shard", shard=3)
    change("pause_ids", ids=["1"])
    found = get(browser, "/shards", queue="record")
    assert [shard["index"] for shard in found["shards"] if shard["paused_since"]] == [3]
    assert (found["paused"], found["paused_ids"]) == (None, 1)
    assert [one["id"] for one in get(browser, "/paused_ids", queue="record")["items"]] == ["1"]


def test_the_end_of_a_change_is_waited_for_and_remembered(browser, record, change):
    record.apply_async(("1", "x"), countdown=100)
    done = change("run_now_all")
    assert (done["state"], done["count"], done["user"]) == ("done", 1, "local")
    assert get(browser, f"/operations/{done['id']}") == done
    assert get(browser, "/operations")["operations"][0] == done
    assert browser.delete(f"/api/v1/operations/{done['id']}").status_code == 202


@pytest.mark.parametrize(
    "fields, status",
    [
        ({}, 400),
        ({"queue": "nobody", "action": "pause"}, 404),
        ({"queue": "record", "action": "format"}, 400),
        ({"queue": "record", "action": "delete"}, 400),
        ({"queue": "record", "action": "delete", "ids": "1"}, 400),
        ({"queue": "record", "action": "delete", "ids": [1]}, 400),
        ({"queue": "record", "action": "delete", "ids": ["x"] * 1001}, 400),
        ({"queue": "record", "action": "delete", "ids": ["\ud800"]}, 400),
        ({"queue": "record", "action": "pause", "ids": ["1"]}, 400),
        ({"queue": "record", "action": "pause_shard", "shard": 8}, 400),
        ({"queue": "record", "action": "pause_shard", "shard": True}, 400),
        ({"queue": "record", "action": "pause", "wait": 31}, 400),
        ({"queue": "record", "action": "requeue_matching"}, 400),
        ({"queue": "record", "action": "requeue_matching", "limit": 5}, 400),
        ({"queue": "record", "action": "requeue_matching", "error": "x", "limit": 0}, 400),
        ({"queue": "record", "action": "requeue_matching", "error": "x", "rate": "fast"}, 400),
        ({"queue": "record", "action": "requeue_matching", "since": "lunch"}, 400),
        ({"queue": "record", "action": "requeue_matching", "error": ""}, 400),
        ({"queue": "record", "action": "requeue_all", "error": "x"}, 400),
        ({"queue": "record", "action": "pause", "wait": "x"}, 400),
        ({"queue": "record", "action": "pause", "wait": 10**400}, 400),
        ({"queue": "record", "action": "delete_payload", "ids": ["1", "2"], "mark": "x"}, 400),
        ([], 400),
    ],
)
def test_a_wrong_change_is_refused_with_the_reason(browser, fields, status):
    body, kind = json.dumps(fields), {"content-type": "application/json"}
    answer = browser.post("/api/v1/changes", content=body, headers=kind)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def test_only_json_changes_something(browser):
    """A form of another site can send anything but this type."""
    body = '{"queue": "record", "action": "pause"}'
    answer = browser.post("/api/v1/changes", content=body, headers={"content-type": "text/plain"})
    assert answer.status_code == 415


def test_another_site_changes_nothing(browser):
    answer = browser.post(
        "/api/v1/changes",
        json={"queue": "record", "action": "pause"},
        headers={"origin": "https://evil.example"},
    )
    assert answer.status_code == 403


def test_every_action_of_the_table_is_in_the_description(browser):
    described = get(browser, "/openapi.json")["components"]["schemas"]["Change"]["properties"]["action"]
    assert described["enum"] == list(ACTIONS)


def test_without_redis_it_says_so(app, visit):
    app.conf.broker_url = "redis://:hunter2@127.0.0.1:1/0"
    browser = visit()
    for path in ("/api/v1/stats", "/readyz", "/"):
        answer = browser.get(path)
        assert answer.status_code == 503
        assert "hunter2" not in answer.text
    assert browser.get("/healthz").status_code == 200
