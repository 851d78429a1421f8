"""``add_consumer`` and ``cancel_consumer``: which ordered queues a node serves while it runs."""

from __future__ import annotations

import pytest
import redis

from tests.waiting import eventually
from tests.worker.checks import command, leases, released


def owners(task):
    return {lease.owner.partition("@")[0] for lease in leases(task)}


def active(app, node):
    (queues,) = command(app, "active_queues", node)
    assert all("exclusive" in queue for queue in queues), "Flower needs whole queues"
    return {queue["name"] for queue in queues}


def broker_queues(server):
    with redis.Redis(unix_socket_path=server.socket_path, decode_responses=True) as client:
        return {key.removeprefix("_kombu.binding.") for key in client.keys("_kombu.binding.*")}


def test_a_node_leaves_a_queue_after_its_running_batch_and_others_take_it(
    app, start_worker, ledger, tmp_path
):
    gated, record = app.tasks["gated"], app.tasks["record"]
    first = start_worker()
    assert first.logs().count("ordered queues are served by ") == 1
    eventually(lambda: owners(gated) == {"w0"})
    gated.delay("runs")
    ledger.wait_for("start")
    start_worker()
    eventually(lambda: owners(gated) == owners(record) == {"w0", "w1"})
    assert command(app, "cancel_consumer", "w0@test", queue="gated") == [
        {"ok": "no longer consuming from gated"}
    ]
    first.wait_for_log("not served: gated (cancel_consumer)")
    eventually(lambda: sorted(lease.owner[:2] for lease in leases(gated)) == ["w0", "w1", "w1", "w1"])
    (tmp_path / "gate").touch()
    eventually(lambda: owners(gated) == {"w1"})
    assert [line["id"] for line in ledger.lines("end")] == ["runs"]
    assert gated.ordered_queue.stats().processed == 1
    eventually(lambda: owners(record) == {"w0", "w1"})
    assert "gated" not in active(app, "w0@test")
    command(app, "add_consumer", "w0@test", queue="gated")
    command(app, "cancel_consumer", "w1@test", queue="gated")
    eventually(lambda: owners(gated) == {"w0"})
    assert "gated" in active(app, "w0@test")


@pytest.mark.full
def test_the_banner_lists_the_ordered_queues(app, start_worker):
    """F9: it said nothing of them."""
    node = start_worker("-Q", "celery,record")
    banner = node.logs().partition("[tasks]")[0]
    assert "[ordered queues]\n" in banner
    assert "  .> record " in banner
    assert "  .> not served: " in banner
    assert "gated" in banner.partition("not served: ")[2]
    node.wait_for_log("exclusion: cooperative; store: redis")


@pytest.mark.full
def test_a_queue_that_nobody_serves_waits(app, start_worker, ledger):
    record = app.tasks["record"]
    start_worker()
    eventually(lambda: owners(record) == {"w0"})
    command(app, "cancel_consumer", "w0@test", queue="record")
    eventually(lambda: released(record))
    record.delay("waits")
    app.tasks["outcome"].delay("1", "ok")
    ledger.wait_for("run")
    assert record.ordered_queue.stats().length == 1
    command(app, "add_consumer", "w0@test", queue="record")
    ledger.wait_for("end")


def test_a_queue_that_was_not_chosen_can_be_added(app, start_worker, ledger, redis_server):
    """Also to a worker that serves none; and broker queues are what they were."""
    node = start_worker("-Q", "celery")
    node.wait_for_log("add -X lowkiq if other workers serve them")
    assert any("WARNING" in line and "add -X lowkiq" in line for line in node.logs().splitlines())
    assert active(app, "w0@test") == {"celery"}
    assert command(app, "add_consumer", "w0@test", queue="record") == [{"ok": "add consumer record"}]
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    assert active(app, "w0@test") == {"celery", "record"}
    command(app, "add_consumer", "w0@test", queue="outcome")
    app.tasks["outcome"].delay("1", "ok")
    ledger.wait_for("run")
    assert not broker_queues(redis_server) & set(app.tasks)


@pytest.mark.full
def test_minus_q_makes_no_broker_queue_of_an_ordered_one(app, start_worker, ledger, redis_server):
    start_worker("-Q", "record")
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    assert active(app, "w0@test") == {"record"}
    assert "record" not in broker_queues(redis_server)


@pytest.mark.full
@pytest.mark.parametrize("words", ["celery,rec*", "celery,lowkiq"])
def test_minus_q_takes_patterns_and_a_word_for_all_ordered_queues(
    app, start_worker, ledger, redis_server, words
):
    start_worker("-Q", words)
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    assert ("gated" in active(app, "w0@test")) is ("lowkiq" in words)
    assert not broker_queues(redis_server) & {"rec*", "lowkiq"}


@pytest.mark.full
def test_celerys_own_queues_come_and_go_as_before(app, start_worker, redis_server):
    start_worker()
    command(app, "add_consumer", "w0@test", queue="others")
    eventually(lambda: "others" in active(app, "w0@test"))
    assert "others" in broker_queues(redis_server)
    command(app, "cancel_consumer", "w0@test", queue="others")
    eventually(lambda: "others" not in active(app, "w0@test"))


@pytest.mark.full
def test_a_fixed_splitter_takes_no_queue_that_comes_later(app, settings, start_worker):
    settings["lowkiq_splitter"] = "default"
    start_worker("-Q", "celery,record")
    (answer,) = command(app, "add_consumer", "w0@test", queue="outcome")
    assert "ordered queue outcome: the splitter of this worker deals shards once" in answer["error"]
    command(app, "cancel_consumer", "w0@test", queue="record")
    eventually(lambda: released(app.tasks["record"]))
    command(app, "add_consumer", "w0@test", queue="record")
    eventually(lambda: owners(app.tasks["record"]) == {"w0"})


@pytest.mark.full
def test_other_pools_say_why_they_cannot(app, start_worker):
    start_worker(pool="solo", lanes=1)
    (answer,) = command(app, "add_consumer", "w0@test", queue="record")
    assert answer == {
        "error": "ordered queue record: ordered queues need the pool threads or prefork: "
        "start a worker with -P threads"
    }
