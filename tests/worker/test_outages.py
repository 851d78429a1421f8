"""R12: however a Redis is unreachable, a node goes on when it is back, says so twice, loses and doubles
nothing.
"""

from __future__ import annotations

import logging
import threading
import time

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import StoreFull
from celery_lowkiq.store.errors import UNAVAILABLE
from tests.marks import first_often
from tests.outages import Front, away, busy, full, read_only
from tests.waiting import eventually
from tests.worker.checks import leases, overlaps, released
from tests.worker.engine import Engine

#: A node works again 2 s after Redis answers; a machine that has other things to do gets more.
BACK_WITHIN = 8.0
#: On a slow disk everysec loses what was acknowledged, also when only the server dies.
ALWAYS = {"appendfsync": "always"}
BEGINS, ENDS = "Ordered queues wait until it is back", "Ordered queues go on"


@pytest.fixture(scope="module")
def mortal():
    with EmbeddedServer(appendonly=True, config=ALWAYS) as server:
        yield server


@pytest.fixture
def server(mortal, caplog):
    caplog.set_level(logging.WARNING)
    with redis.Redis(unix_socket_path=mortal.socket_path) as client:
        client.flushall()
    return mortal


def survives(engine, outage, caplog):
    """The outage begins in the middle of work, and lasts until everybody has noticed it."""
    engine.runner.act = lambda batch: threading.Event().wait(0.005) and None
    engine.push(200)
    eventually(lambda: len(engine.runner.ids) > 20)
    with outage:
        eventually(lambda: BEGINS in caplog.text)
    engine.all_done(BACK_WITHIN)
    eventually(lambda: caplog.text.count(ENDS) == 1)
    assert caplog.text.count(BEGINS) == 1
    assert engine.lost_or_doubled() == {}


@pytest.mark.parametrize("outage", [away, read_only, busy])
def test_a_redis_that_is_away(server, caplog, outage):
    with Engine(server) as engine:
        survives(engine, outage(server), caplog)


@pytest.mark.parametrize("code", UNAVAILABLE)
def test_a_redis_that_cannot_serve_now(server, caplog, tmp_path, code):
    with Front(server, tmp_path) as front, Engine(server, front.path) as engine:
        survives(engine, front.answers(f"{code} as asked"), caplog)


@pytest.mark.full
def test_twenty_restarts(server, caplog):
    with Engine(server) as engine:
        for _ in range(20):
            engine.push(10)
            with away(server):
                pass
            engine.push(10)
            engine.all_done(BACK_WITHIN)
            eventually(lambda: caplog.text.count(ENDS) == caplog.text.count(BEGINS))
    assert caplog.text.count(BEGINS) <= 20
    assert engine.lost_or_doubled() == {}


def test_all_connections_killed(server, caplog):
    with Engine(server) as engine, redis.Redis(unix_socket_path=server.socket_path) as client:
        for _ in range(5):
            engine.push(50)
            for type_ in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", type_)
            engine.all_done(BACK_WITHIN)
            eventually(lambda: caplog.text.count(ENDS) == caplog.text.count(BEGINS))
    assert caplog.text.count(BEGINS) <= 5
    assert engine.lost_or_doubled() == {}


@pytest.mark.full
def test_a_storm_of_killed_connections_is_two_lines(server, caplog):
    """P3"""
    with Engine(server) as engine, redis.Redis(unix_socket_path=server.socket_path) as client:
        engine.push(50)
        eventually(lambda: len(engine.runner.ids) > 20)
        ends_at = time.monotonic() + 5
        kills = 0
        while time.monotonic() < ends_at:
            for type_ in ("normal", "pubsub"):
                kills += client.execute_command("CLIENT", "KILL", "TYPE", type_)
            threading.Event().wait(0.02)
        assert kills > 100
        engine.all_done(BACK_WITHIN)
        eventually(lambda: caplog.text.count(ENDS) == caplog.text.count(BEGINS) == 1)
    assert engine.lost_or_doubled() == {}


def test_all_scripts_forgotten(server, caplog):
    with Engine(server) as engine, redis.Redis(unix_socket_path=server.socket_path) as client:
        for _ in range(10):
            engine.push(30)
            client.script_flush()
            engine.all_done(BACK_WITHIN)
    assert caplog.text == ""
    assert engine.lost_or_doubled() == {}


def test_a_full_redis_is_drained_also_by_a_node_that_starts_then(server, caplog):
    engine = Engine(server)
    if engine.pushes.client.servers.redis.info("server")["redis_version"].startswith("6."):
        pytest.skip("Redis 6.2 knows no script flags, and refuses claims when it is full")
    engine.push(30)
    with full(server):
        with pytest.raises(StoreFull):
            engine.push(1)
        with engine:
            engine.all_done()
    assert caplog.text == ""
    assert engine.lost_or_doubled() == {}


@pytest.fixture
def own_servers(settings):
    """A broker and a store that the test may end."""
    with EmbeddedServer(port=0) as broker, EmbeddedServer(port=0, appendonly=True, config=ALWAYS) as store:
        settings.update(
            broker_url=broker.url,
            lowkiq_url=store.url,
            broker_connection_max_retries=None,
            broker_transport_options={"socket_timeout": 2},
        )
        yield broker, store


@pytest.mark.full
def test_lanes_do_not_need_the_broker(own_servers, app, settings, start_worker, ledger, tmp_path):
    """Nor does a run end with the connection, because no message of it will come again."""
    broker, _ = own_servers
    settings.update(worker_cancel_long_running_tasks_on_connection_loss=True, task_acks_late=True)
    # A lane for each shard: none of the others waits behind the long run.
    node = start_worker(lanes=14)
    app.tasks["gated"].delay("runs on")
    ledger.wait_for("start")
    app.tasks["record"].delay("before")
    ledger.wait_for("end")
    with away(broker):
        node.wait_for_log("Connection to broker lost")
        (tmp_path / "gate").touch()
        for number in range(20):
            app.tasks["record"].delay(f"during-{number}")
        ledger.wait_for("end", 22)
    app.tasks["plain"].delay(1)
    ledger.wait_for("plain")
    app.tasks["record"].delay("after")
    ledger.wait_for("end", 23)
    assert len(ledger.lines("start")) == 23
    assert "Terminating" not in node.logs()
    assert {line["pid"] for line in ledger.lines()} == {node.container.process.pid}
    node.kill("SIGTERM")
    assert node.exit_status() == 0
    assert released(app.tasks["record"])


@pytest.mark.full
def test_a_worker_that_looks_for_its_broker_can_be_stopped(own_servers, app, start_worker, ledger):
    broker, _ = own_servers
    node = start_worker()
    app.tasks["record"].delay("before")
    ledger.wait_for("end")
    with away(broker):
        node.wait_for_log("Connection to broker lost")
        node.kill("SIGTERM")
        assert node.exit_status() == 0
    assert released(app.tasks["record"])


def test_a_store_outage_is_survived_and_logged_twice(own_servers, app, start_worker, ledger):
    _, store = own_servers
    record = app.tasks["record"]
    node = start_worker(PROJ_WORK="0.05", lanes=2)
    record.perform_async([{"id": n, "payload": n} for n in range(40)])
    ledger.wait_for("end", 5)
    with away(store):
        node.wait_for_log(BEGINS)
    node.wait_for_log(ENDS)
    eventually(lambda: (s := record.ordered_queue.stats()).length == s.busy == 0)
    assert {line["id"] for line in ledger.lines("end")} == {str(n) for n in range(40)}
    assert overlaps(ledger.lines()) == []
    assert node.logs().count(BEGINS) == node.logs().count(ENDS) == 1
    node.kill("SIGTERM")
    assert node.exit_status() == 0


@pytest.mark.full
def test_a_password_that_a_worker_does_not_have_is_named(own_servers, app, start_worker, ledger):
    """P3: it looked like an outage; and is waited for like one."""
    _, store = own_servers
    node = start_worker()
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    with redis.Redis(unix_socket_path=store.socket_path) as admin:
        admin.config_set("requirepass", "hush-hush")
        for type_ in ("normal", "pubsub"):
            admin.execute_command("CLIENT", "KILL", "TYPE", type_, "SKIPME", "yes")
        node.wait_for_log("asks for a password (NOAUTH): add it to lowkiq_url")
        admin.config_set("requirepass", "")
    app.tasks["record"].delay("2")
    ledger.wait_for("end", 2)
    node.wait_for_log(ENDS)
    assert node.logs().count("NOAUTH") == node.logs().count(ENDS) == 1
    assert "hush-hush" not in node.logs()


@pytest.mark.full
def test_a_redis_that_may_throw_jobs_away_is_an_error_in_the_log(settings, app, start_worker):
    """P1: workers never said so."""
    config = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with EmbeddedServer(port=0, config=config) as store:
        settings["lowkiq_url"] = store.url
        node = start_worker()
        node.wait_for_log("allkeys-lru: a full Redis evicts jobs. Set maxmemory-policy to noeviction.")
        (line,) = [line for line in node.logs().splitlines() if "maxmemory-policy" in line]
        assert "ERROR" in line
        node.kill("SIGTERM")
        assert node.exit_status() == 0


def unblock(client):
    """What a server does to a client that waits in BRPOP when it becomes a replica."""
    blocked = [one for one in client.client_list() if one["cmd"] == "brpop" and "b" in one["flags"]]
    return sum(client.execute_command("CLIENT", "UNBLOCK", one["id"], "ERROR") for one in blocked)


@pytest.fixture
def one_server(settings):
    """Broker and store, that fail over."""
    with EmbeddedServer(port=0) as server:
        settings.update(broker_url=server.url, lowkiq_lease_seconds=5.0)
        with redis.Redis(unix_socket_path=server.socket_path) as client:
            yield server, client


@pytest.mark.full
def test_a_broker_that_fails_over_ends_a_worker_after_what_runs(
    one_server, app, settings, start_worker, ledger, tmp_path
):
    """P2: Celery ends for the error UNBLOCKED; running batches are settled before, and nothing begins."""
    _, client = one_server
    app.conf.update(settings)
    gated = app.tasks["gated"]
    node = start_worker(lanes=2)
    gated.perform_async([{"id": n} for n in range(30)])
    running = {line["id"] for line in ledger.wait_for("start", 2)}
    for job_id in running:
        gated.delay(job_id, "newer")
    eventually(lambda: unblock(client))
    node.wait_for_log("Unrecoverable error")
    node.wait_for_log("exits with status 1, for the reason that Celery has logged")
    node.wait_for_log("ordered queues stop: 2 batches are running")
    assert node.container.status == "running"
    (tmp_path / "gate").touch()
    assert node.exit_status() == 1
    assert "UNBLOCKED" in node.logs()
    assert {line["id"] for line in ledger.lines("start")} == running
    assert {line["id"] for line in ledger.lines("end")} == running
    stats = gated.ordered_queue.stats()
    assert (stats.busy, stats.length, stats.processed, stats.failed) == (0, 30, 2, 0)
    assert released(gated)
    # What a supervisor does.
    other = start_worker()
    ledger.wait_for("end", 32)
    other.kill("SIGTERM")
    assert other.exit_status() == 0


@pytest.mark.full
def test_a_failover_of_broker_and_store_at_once(one_server, app, settings, start_worker, ledger, tmp_path):
    """P2: batches that end while the store is a replica are settled when there is a master again."""
    server, client = one_server
    app.conf.update(settings)
    gated = app.tasks["gated"]
    gated.delay("1")
    node = start_worker()
    ledger.wait_for("start")
    eventually(lambda: any("b" in one["flags"] for one in client.client_list() if one["cmd"] == "brpop"))
    with read_only(server):
        node.wait_for_log("Unrecoverable error")
        (tmp_path / "gate").touch()
        ledger.wait_for("end")
        node.wait_for_log(BEGINS)
    assert node.exit_status() == 1
    assert "UNBLOCKED" in node.logs()
    stats = gated.ordered_queue.stats()
    assert (stats.busy, stats.length, stats.processed) == (0, 0, 1)
    assert released(gated)
    assert len(ledger.lines("start")) == 1


LOST, HANDS = "Redis has lost data of", "changed hands"


@pytest.mark.parametrize("how", first_often(["flushed", "restarted without persistence"]))
def test_data_that_is_gone_is_one_warning_in_each_worker(settings, app, start_worker, ledger, how):
    """P3: the log had a line a shard, that it had another owner now."""
    with EmbeddedServer(port=0) as store:
        settings["lowkiq_url"] = store.url
        app.conf.update(settings)
        record = app.tasks["record"]
        nodes = [start_worker(), start_worker()]
        record.perform_async([{"id": n} for n in range(20)])
        ledger.wait_for("end", 20)
        eventually(lambda: all(lease.owner for lease in leases(record)))
        if how == "flushed":
            with redis.Redis(unix_socket_path=store.socket_path) as client:
                client.flushall()
        else:
            store.kill()
            store.restart()
        for node in nodes:
            node.wait_for_log(LOST)
        record.delay("after")
        ledger.wait_for("end", 21)
        eventually(lambda: all(lease.owner for lease in leases(record)))
        for node in nodes:
            (line,) = [line for line in node.logs().splitlines() if LOST in line]
            assert "WARNING" in line
            assert (
                "'batches' (shards: 1), 'gated' (shards: 4), 'outcome' (shards: 1), 'record' (shards: 8)"
                in line
            )
            assert HANDS not in node.logs()
            node.kill("SIGTERM")
            assert node.exit_status() == 0


def test_a_worker_without_its_store_can_be_stopped(own_servers, app, start_worker, ledger):
    _, store = own_servers
    node = start_worker()
    app.tasks["record"].delay("1")
    ledger.wait_for("end")
    with away(store):
        node.wait_for_log(BEGINS)
        node.kill("SIGTERM")
        assert node.exit_status() == 0


def test_a_worker_that_starts_before_its_store_waits_for_it(own_servers, app, start_worker, ledger):
    _, store = own_servers
    app.tasks["record"].delay("1")
    with away(store):
        node = start_worker()
        node.wait_for_log(BEGINS)
    ledger.wait_for("end")


@pytest.mark.full
def test_one_redis_for_broker_and_store_is_restarted_twenty_times(settings, app, start_worker, ledger):
    """Plain tasks go on at the end as well; Celery takes longer to find its broker again."""
    with EmbeddedServer(port=0, appendonly=True, config=ALWAYS) as server:
        settings.update(broker_url=server.url, broker_connection_max_retries=None)
        app.conf.update(settings)
        record = app.tasks["record"]
        node = start_worker()
        for number in range(20):
            record.perform_async([{"id": f"{number}-{n}"} for n in range(5)])
            with away(server):
                pass
            record.delay(f"{number}-after")
            ledger.wait_for("end", 6 * (number + 1), BACK_WITHIN)
        assert len(ledger.lines("start")) == 20 * 6
        eventually(lambda: node.logs().count(BEGINS) == node.logs().count(ENDS) <= 20)
        app.tasks["plain"].delay(1)
        ledger.wait_for("plain")
        node.kill("SIGTERM")
        assert node.exit_status() == 0
