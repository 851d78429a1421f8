"""Tests of ``store/cluster_map.py``."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import exceptions

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.store import cluster_map
from celery_lowkiq.store.cluster_map import slot_of
from tests.unit import test_cluster_client as others
from tests.unit.resp_nodes import number
from tests.unit.test_cluster_client import A, B, results
from tests.waiting import eventually

cluster, make_client, client = others.cluster, others.make_client, others.client


def first_words(caplog):
    return [re.sub(r".*(is unreachable|is back|was replaced).*", r"\1", text) for text in caplog.messages]


def test_an_answer_from_before_an_outage_does_not_end_it(cluster, client, caplog):
    """A thread noted it after another one had noted the outage: "is back after 0.0 s", and away again."""
    results(client, A, B)
    first, second, _ = cluster.nodes
    asked, noted = threading.Event(), threading.Event()
    second.answer = lambda words: asked.set() or (noted.wait(10) and number(1))
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(results, client, A, B)
        asked.wait(10)
        eventually(lambda: len(first.keys()) == 2)
        first.answer = lambda words: None
        assert isinstance(results(client, A)[0], StoreUnavailable)
        noted.set()
        assert found.result() == [1, 1]
    assert set(client.cluster.map.outages.unreachable) == {first.address}
    assert first_words(caplog) == ["is unreachable"]


def test_a_timeout_from_before_the_end_of_an_outage_begins_no_other_one(cluster, client, caplog):
    results(client, A)
    node, before = cluster.nodes[0], time.monotonic()
    outages, slots = client.cluster.map.outages, client.cluster.map.slots()
    node.answer = lambda words: None
    results(client, A)
    node.answer = lambda words: number(1)
    assert results(client, A) == [1]
    outages.lost(node.address, exceptions.TimeoutError("late"), before, slots)
    assert not outages.unreachable
    assert not outages.unresponsive
    assert first_words(caplog) == ["is unreachable", "is back"]


def test_a_master_that_serves_no_slot_yet_is_not_back(cluster, client, caplog):
    """A restarted node answers CLUSTERDOWN to everything for a second or two."""
    client.cluster.waits_less = True
    node = cluster.nodes[0]
    node.answer = lambda words: None
    results(client, A)
    node.answer = lambda words: b"-CLUSTERDOWN The cluster is down\r\n"
    results(client, A, B)
    assert first_words(caplog) == ["is unreachable"]
    node.answer = lambda words: number(1)
    results(client, A)
    assert first_words(caplog) == ["is unreachable", "is back"]


def test_an_outage_lasts_from_the_first_command_that_was_not_answered(cluster, make_client, caplog):
    """It was counted from the timeout."""
    client = make_client(socket_timeout=0.4)
    results(client, A)
    node, thaw = cluster.nodes[0], threading.Event()
    node.answer = lambda words: thaw.wait(10) and number(1)
    results(client, A)
    thaw.set()
    eventually(lambda: results(client, A) == [1])
    assert float(re.findall(r"is back after (\S+) s", caplog.text)[0]) >= 0.4


def test_the_maps_of_a_process_log_an_outage_once(cluster, make_client, caplog):
    """A worker whose tasks call has two: of its lanes, and of its callers."""
    clients = [make_client() for _ in range(2)]
    node = cluster.nodes[0]
    node.answer = lambda words: None
    for client in clients:
        results(client, A)
    node.answer = lambda words: number(1)
    for client in clients:
        assert results(client, A) == [1]
    assert first_words(caplog) == ["is unreachable", "is back"]


def test_who_took_the_slots_of_a_master_is_named(cluster, make_client, monkeypatch, caplog):
    """Also when a thread, or another map, has not heard of it yet."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    client, late = make_client(), make_client()
    results(client, A)
    results(late, A)
    gone, successor, _ = cluster.nodes
    gone.stop()
    results(client, A)
    late.cluster.map.refresh = lambda: None
    cluster.maps = {1: (0, 10922), 2: (10923, 16383)}
    eventually(lambda: results(client, A) == [1] and not client.cluster.map.outages.unreachable, 10)
    assert late.cluster.map.slots()[slot_of(A)] == gone.address
    assert isinstance(results(late, A)[0], StoreUnavailable)
    eventually(lambda: len(caplog.messages) == 2)
    place = "{}:{}".format(*successor.address)
    pattern = rf"Redis {gone.place.decode()} was replaced after \d\.\d s: its slots are on {place} now\."
    assert re.fullmatch(pattern, caplog.messages[1])
    # Where it is a master again, its next outage is another one.
    cluster.maps = {0: (0, 5460), 1: (5461, 10922), 2: (10923, 16383)}
    client.cluster.map.refresh()
    eventually(lambda: client.cluster.map.slots()[slot_of(A)] == gone.address)
    eventually(lambda: results(client, A) and first_words(caplog)[2:] == ["is unreachable"])


@pytest.fixture(autouse=True)
def only_outages(caplog):
    caplog.set_level("WARNING")
