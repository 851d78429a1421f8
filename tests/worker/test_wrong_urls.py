"""A worker whose URL names a wrong server ends when it starts, and says what to write."""

from __future__ import annotations

import json
import sys

import pytest

from tests.clusters import Cluster
from tests.processes import run

pytestmark = pytest.mark.one_server


@pytest.fixture
def refused(settings, start_worker):
    """What a worker with this URL has written when it has ended."""

    def start(url: str) -> str:
        wrong = json.dumps({**settings, "lowkiq_url": url})
        node = start_worker(wait=False, PROJ_SETTINGS=wrong)
        assert node.exit_status() == 1
        return str(node.logs())

    return start


def test_a_worker_with_a_node_of_a_cluster_ends(refused, cluster: Cluster):
    """It logged "Permit it" beside "set lowkiq_url to redis+cluster://", and waited."""
    log = refused(f"redis://127.0.0.1:{cluster.servers[0].port}/0")
    assert "Error: lowkiq_url, or broker_url without it, is a node of a Redis Cluster" in log
    assert "redis+cluster://host:port" in log
    assert "Traceback" not in log
    assert "Permit it" not in log


def test_a_worker_with_another_database_of_a_cluster_ends_without_a_traceback(refused):
    log = refused("redis+cluster://127.0.0.1:7000/1")
    assert "Error: lowkiq_url is a cluster's URL with db=1: expected none, or 0" in log
    assert "Traceback" not in log


def test_the_demo_notices_a_wrong_url_before_its_plain_task(cluster: Cluster):
    """The plain task ran for a minute before, or ended with a traceback."""
    url = f"redis://127.0.0.1:{cluster.servers[0].port}/0"
    done = run([sys.executable, "-m", "examples.replica", "--redis", url], 60)
    assert done.returncode == 2
    assert done.stderr.startswith("replica: lowkiq_url, or broker_url without it, is a node of a Redis")
    assert "Traceback" not in done.stderr
