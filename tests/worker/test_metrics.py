"""What a worker shows to Prometheus."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from tests.outages import away
from tests.waiting import eventually
from tests.worker.scraping import metrics_url, scrape


@pytest.fixture
def settings(settings):
    return settings | {"lowkiq_metrics_port": 0}


@pytest.fixture
def measured(start_worker) -> Callable[[], dict[tuple[str, ...], float]]:
    """Scrapes a worker."""
    url = metrics_url(start_worker())
    return lambda: scrape(url)


def test_a_queue(app, measured, ledger):
    record, outcome = app.tasks["record"], app.tasks["outcome"]
    record.perform_async([{"id": n % 3, "payload": n, "perform_in": 9e9} for n in range(5)])
    outcome.perform_async([{"id": 1, "payload": "fail"}, {"id": 2, "payload": "well"}])
    eventually(lambda: outcome.ordered_queue.stats().morgue_length == 1)
    found = eventually(lambda: s if (s := measured())["lowkiq_processed_total", "queue=outcome"] else None)
    assert {
        name: value
        for (name, *labels), value in found.items()
        if labels == ["queue=record"] and not name.endswith("_created")
    } == {
        "lowkiq_length": 3,
        "lowkiq_calls_waiting": 5,
        "lowkiq_busiest_id_calls": 0,
        "lowkiq_oldest_call_seconds": 0,
        "lowkiq_fresh": 3,
        "lowkiq_retries": 0,
        "lowkiq_paused_jobs": 0,
        "lowkiq_paused_ids": 0,
        "lowkiq_morgue_length": 0,
        "lowkiq_held": 0,
        "lowkiq_held_seconds": 0,
        "lowkiq_busy": 0,
        "lowkiq_lag_seconds": 0,
        "lowkiq_oldest_seconds": 0,
        "lowkiq_processed_total": 0,
        "lowkiq_failed_total": 0,
        "lowkiq_unverified_total": 0,
        "lowkiq_dead_total": 0,
        "lowkiq_merged_total": 2,
        "lowkiq_dropped_total": 0,
        "lowkiq_shards": 8,
        "lowkiq_shards_unowned": 0,
        "lowkiq_shards_paused": 0,
        "lowkiq_shards_damaged": 0,
        "lowkiq_shards_unreachable": 0,
        "lowkiq_runs_overdue": 0,
    }
    assert found["lowkiq_failed_total", "queue=outcome"] == 2
    assert found["lowkiq_dead_total", "queue=outcome"] == 1
    assert found["lowkiq_redis_up",] == 1


def test_runs_are_measured(app, start_worker, ledger):
    url = metrics_url(start_worker(PROJ_WORK="0.06"))
    app.tasks["batches"].perform_async([{"id": n, "payload": "x"} for n in range(3)])
    app.tasks["record"].delay(1, "x")
    ledger.wait_for("end")
    ledger.wait_for("survived")
    found = eventually(
        lambda: s if ("lowkiq_run_seconds_count", "queue=record") in (s := scrape(url)) else None
    )
    assert found["lowkiq_run_seconds_bucket", "le=0.05", "queue=record"] == 0
    assert found["lowkiq_run_seconds_sum", "queue=record"] >= 0.06
    assert found["lowkiq_batch_jobs_sum", "queue=batches"] == 3
    assert found["lowkiq_wait_seconds_count", "queue=batches"] == 3
    assert 0 <= found["lowkiq_wait_seconds_sum", "queue=batches"] < 60


@pytest.mark.full
def test_the_wait_is_counted_from_when_the_job_was_due(app, measured, ledger):
    queue = app.tasks["record"].ordered_queue
    queue.pause()
    app.tasks["record"].delay(1, "x")
    eventually(lambda: queue.stats().oldest > 0.5)
    queue.resume()
    ledger.wait_for("end")
    found = eventually(
        lambda: s if ("lowkiq_wait_seconds_sum", "queue=record") in (s := measured()) else None
    )
    assert found["lowkiq_wait_seconds_sum", "queue=record"] > 0.5


@pytest.mark.full
def test_a_node_and_its_lanes(app, measured, ledger, tmp_path):
    app.tasks["gated"].delay(1, "x")
    ledger.wait_for("start")
    assert measured()["lowkiq_lanes_busy", "node=w0@test"] == 1
    (tmp_path / "gate").touch()
    eventually(lambda: measured()["lowkiq_lanes_busy", "node=w0@test"] == 0)
    found = eventually(
        lambda: s if (s := measured())["lowkiq_lease_renewals_total", "node=w0@test"] else None
    )
    assert found["lowkiq_lanes", "node=w0@test"] == 4
    for name in ("leases_lost", "redis_errors", "redis_outages"):
        assert found[f"lowkiq_{name}_total", "node=w0@test"] == 0


@pytest.mark.full
def test_an_outage_is_counted_and_its_scrapes_say_so(start_worker, settings):
    with EmbeddedServer() as mortal:
        settings["lowkiq_url"] = mortal.url
        url = metrics_url(start_worker())
        with away(mortal):
            found = eventually(lambda: s if (s := scrape(url))["lowkiq_redis_up",] == 0 else None)
            assert ("lowkiq_length", "queue=record") not in found
            eventually(lambda: scrape(url)["lowkiq_redis_outages_total", "node=w0@test"] == 1)
        found = eventually(lambda: s if (s := scrape(url))["lowkiq_redis_up",] == 1 else None)
        assert found["lowkiq_length", "queue=record"] == 0
        assert found["lowkiq_redis_errors_total", "node=w0@test"] >= 1


@pytest.mark.full
def test_a_port_in_use_costs_the_metrics_and_not_the_worker(app, settings, start_worker, ledger):
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings["lowkiq_metrics_port"] = other.getsockname()[1]
        node = start_worker()
        assert "this worker has no metrics" in node.logs()
        assert f"lowkiq_metrics_port={settings['lowkiq_metrics_port']} of 127.0.0.1" in node.logs()
        app.tasks["record"].delay(1, "x")
        ledger.wait_for("end")


@pytest.mark.full
@pytest.mark.parametrize("port", [None, 0])
def test_metrics_are_imported_only_where_a_port_is_set(settings, start_worker, port):
    settings["lowkiq_metrics_port"] = port
    node = start_worker(PYTHONPROFILEIMPORTTIME=1)
    assert ("celery_lowkiq.metrics" in node.logs()) == (port is not None)


@pytest.mark.full
def test_a_port_without_prometheus_client_is_refused(settings, start_worker, tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')")
    node = start_worker(wait=False, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert node.exit_status() != 0
    assert (
        "lowkiq_metrics_port=0 needs prometheus_client: pip install 'celery-lowkiq[metrics]'" in node.logs()
    )
