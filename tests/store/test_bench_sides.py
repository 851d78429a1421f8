"""The other sides of the bench: bare commands, and Sidekiq where it is installed."""

from __future__ import annotations

import pytest
import redis

from benchmarks import bare, sidekiq
from benchmarks.bench import Bench


@pytest.fixture
def bench(empty_redis, tmp_path):
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        yield Bench(empty_redis.url, client, tmp_path, quick=True)


@pytest.fixture
def client(bench):
    if not sidekiq.versions():
        pytest.skip("Sidekiq is not installed")
    with sidekiq.SidekiqClient(bench) as process:
        yield process


@pytest.mark.parametrize(("batch", "runs"), [(1, 1000), (100, 20)])
def test_bare_commands_run_and_forget_all_jobs(bench, batch, runs):
    seen: list[dict[str, list[object]]] = []
    cost = bare.worked(bench, 1000, seen.append, batch)
    assert len(seen) == runs
    assert {n: jobs for each in seen for n, jobs in each.items()} == {str(n): [{"v": n}] for n in range(1000)}
    assert bench.direct.keys() == []
    assert set(cost.cpu) == {"worker", "redis"}


def test_bare_pushes_have_new_ids(bench):
    connection = bare.BareRedis(bench.url)
    bare.pushed(bench, connection, 20)
    bare.pushed(bench, connection, 20, at_once=10)
    assert bench.direct.zcard("due") == bench.direct.hlen("jobs") == 40


@pytest.mark.parametrize("kind", ["bulk", "single"])
def test_sidekiq_has_the_calls(bench, client, kind):
    cost = client.cost(kind, 30)
    assert bench.direct.llen("queue:default") == 30
    assert cost.wall > 0
    assert set(cost.cpu) == {"client", "redis"}


def test_a_sidekiq_worker_notes_when_it_started_a_job(bench, client):
    with sidekiq.SidekiqWorker(bench) as worker:
        began = client.stamped(7)
        worker.until(lambda: bool(worker.started()))
    started, _ = worker.started()["7"]
    assert 0 < started - began < 60


def test_without_ruby_there_is_no_sidekiq(bench, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    sidekiq.versions.cache_clear()
    try:
        assert sidekiq.versions() == {}
        assert sidekiq.if_installed(lambda: pytest.fail("measured")) is None
        with sidekiq.client(bench) as process:
            assert process is None
    finally:
        monkeypatch.undo()
        sidekiq.versions.cache_clear()
