"""A short chaos run, and what a user sees of one; ``nox -s chaos`` has the long ones."""

from __future__ import annotations

import json

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from tests.chaos.__main__ import main
from tests.chaos.options import ON_A_CLUSTER, Options
from tests.chaos.run import run

#: Gates about time say as much about a busy machine as about us.
OF_HEALTHY = {"hand-over s", "silence of a healthy shard s"}
OF_TIME = {"drain s", "takeover s"} | OF_HEALTHY


@pytest.mark.full
@pytest.mark.parametrize("exclusion", ["cooperative", "strict"])
@pytest.mark.parametrize("awaits", [False, True], ids=["def", "async def"])
def test_nothing_is_lost_overlaps_or_gets_out_of_order(exclusion, awaits):
    options = Options(seed=1, nodes=2, seconds=4.0, exclusion=exclusion, awaits=awaits)
    report = run(options, print)
    assert report.failed() - OF_TIME == set(), [gate for gate in report.gates if not gate.passed]
    assert report.figures["faults"] > 0


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_what_a_replica_has_confirmed_survives_failovers_while_jobs_move():
    faults = frozenset({"kill", "freeze", "cut", "redis", "reshard", "failover"})
    report = run(Options(seed=1, nodes=2, seconds=8.0, shards=24, faults=faults), print)
    assert report.failed() - OF_TIME == set(), [gate for gate in report.gates if not gate.passed]
    assert report.figures["faults by kind"].keys() & {"failover", "failover of a move"}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_nothing_is_lost_on_a_cluster_whose_masters_die_and_move():
    """Three minutes of ``nox -s cluster``, beside other tests: its gates of a second say too much there.

    A healthy shard that really stalls waits for a lease, which takes 1.05 lease times at least.
    """
    options = Options(seed=1, nodes=2, seconds=180.0, lease=5.0, pause=2.0, faults=ON_A_CLUSTER, cluster=True)
    report = run(options, print)
    failed = report.failed() - OF_TIME
    assert failed == set(), [gate for gate in report.gates if not gate.passed]
    assert sum(report.figures["faults that happened"].values()) > 10
    assert report.figures["healthy silences measured"] > 100
    stalled = [
        gate for gate in report.gates if gate.name in OF_HEALTHY and (gate.figure or 0) >= options.lease
    ]
    assert stalled == []


@pytest.mark.full
def test_a_users_redis_is_left_as_it_was(capsys):
    with EmbeddedServer(port=0, config={"requirepass": "sesame"}) as server:
        url = f"redis://:sesame@127.0.0.1:{server.port}/0"
        words = ["--redis", url, "--nodes", "1", "--seconds", "1", "--seed", "1", "--faults", "redis,cut"]
        main([*words, "--json"])
        shown = capsys.readouterr()
        assert "left out, because the Redis is yours: redis" in shown.err
        report = json.loads(shown.out)
        assert report["figures"]["payloads"] > 0
        assert report["figures"]["faults by kind"].keys() <= {"cut", "hole", "down"}
        assert "sesame" not in shown.err + shown.out
        with redis.Redis.from_url(url) as client:
            assert client.keys() == []


@pytest.mark.parametrize(
    "words", [["--faults", "fire"], ["--lease", "0"], ["--redis", "rediss://127.0.0.1:1/0"]]
)
def test_an_impossible_run_is_refused_with_status_2(words, capsys):
    assert main(["--seconds", "1", *words]) == 2
    assert "error: " in capsys.readouterr().err
