"""The page about the number of shards, as code with two numbers sees it."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from celery_lowkiq import QueueMigrating, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations


@pytest.fixture
def app(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    with Celery("proj", broker=redis_server.url, set_as_current=False) as app:
        yield app


def test_a_queue_is_resharded_while_code_with_both_numbers_runs(app):
    other = Celery("proj", broker=app.conf.broker_url, set_as_current=False)
    first = declared(app, "one", 5, queue="proj.q")
    second = declared(other, "two", 24, queue="proj.q")
    first.delay("1")
    second.delay("1", 2)
    assert waiting(first, "1") == waiting(second, "1") == ["", 2]
    second.ordered_queue.reshard(24)
    first.delay("1", 3)
    first.delay("2")
    assert waiting(first, "1") == waiting(second, "1") == ["", 2, 3]
    assert waiting(second, "2") == [""]
    assert first.ordered_queue.stored_spec().shards == 24


def test_actions_wait_for_the_end_of_a_migration(app):
    task = declared(app, "one", 5)
    queue = task.ordered_queue
    task.delay("1")
    store = context_of(app).store
    Migrations(store.client, queue.name).begin(7)
    mover = store.mover(queue.spec)
    while queue.stored_spec().former_shards is None:
        mover.turn()
    with pytest.raises(QueueMigrating, match=r"from 5 to 7 shards.*lowkiq reshard one --watch"):
        queue.delete(["1"])
    with pytest.raises(QueueMigrating):
        queue.reshard(9)
    assert queue.stats().length == 1
    (found,) = [f for f in Inspector(app).doctor() if "moving" in f.text]
    assert "It is moving from 5 to 7 shards" in found.text
    assert queue.pause()
    assert queue.resume()
    queue.reshard(7)
    assert queue.delete(["1"]) == 1


@pytest.fixture
def moving(app):
    """A task whose queue is on its way from 7 shards to 3, with another task beside it."""
    moving, beside = declared(app, "moving", 7), declared(app, "beside", 7)
    for number in range(70):
        moving.delay(str(number), number)
        beside.delay(str(number), number)
    store = context_of(app).store
    Migrations(store.client, "moving").begin(3)
    mover = store.mover(moving.ordered_queue.spec)
    while moving.ordered_queue.stored_spec().former_shards is None:
        mover.turn()
    return moving


def test_all_jobs_are_seen_while_they_move(app, moving):
    found = Inspector(app).overview().by_queue
    assert (found["moving"].length, found["beside"].length) == (70, 70)
    queue = moving.ordered_queue
    assert queue.paused().ids == 0
    assert [number for number in range(70) if queue.job(str(number)).waiting is None] == []


def test_an_id_is_found_while_jobs_move(app, moving):
    """In the shard that has it."""
    queue, client = moving.ordered_queue, context_of(app).store.client.servers.redis
    for number in range(70):
        shard = queue.stored_spec().shards_of(str(number))[-1]
        client.hset(shard_keys(shard)["tries"], str(number), f"1.5\t{number}\tnode\tboom")
        found = queue.why(str(number))
        assert (found.facts.shard, found.facts.waiting is None) == (shard, False)
        assert [one.retry_count for one in queue.tries(str(number))] == [number]


def test_what_would_see_a_part_only_is_refused_while_jobs_move(moving):
    with pytest.raises(QueueMigrating):
        list(moving.ordered_queue.dump())


def declared(app, name, shards, queue=None):
    @ordered_task(app=app, shared=False, name=name, queue_name=queue, shards=shards)
    def task(payloads_by_id): ...

    return task


def waiting(task, job_id):
    return [payload.value for payload in task.ordered_queue.job(job_id).waiting.payloads]
