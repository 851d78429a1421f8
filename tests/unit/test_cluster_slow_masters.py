"""What a master costs that answers late: each round trip of a worker to it, one after the other."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.store import cluster_map
from celery_lowkiq.store.script import load, scripts_of_workers
from tests.unit import test_cluster_client as others
from tests.unit.resp_nodes import NOT_HERE, number
from tests.unit.test_cluster_client import A, B, C, call, results
from tests.waiting import eventually

cluster, make_client = others.cluster, others.make_client


def knows_what_it_was_told(node):
    """Have a node answer a script only when it has it. Returns the scripts by the number of loads."""
    loaded = Counter()

    def answer(words):
        if words[0] == b"SCRIPT":
            loaded[words[2].decode()] += 1
            return b"$2\r\nok\r\n"
        return number(5) if words[1].decode() in known() else NOT_HERE

    def known():
        return {script.shas[True] for script in SCRIPTS if script.text(True) in loaded}

    node.answer = answer
    return loaded


def threads():
    return [thread.name for thread in threading.enumerate()]


SCRIPTS = [*scripts_of_workers(), load("page")]


def test_a_worker_loads_its_scripts_together(cluster, make_client):
    """Each of a dozen cost two more round trips: a start took 38 s with one that takes 0.85 s."""
    client = make_client()
    client.cluster.waits_less = True
    loaded = [knows_what_it_was_told(node) for node in cluster.nodes]
    assert results(client, A, C) == [5, 5]
    of_workers = dict.fromkeys((script.text(True) for script in scripts_of_workers()), 1)
    assert loaded == [of_workers, {}, of_workers]
    heard = [len(node.heard) for node in cluster.nodes]
    assert client.calls([load("read_leases").call_many([key]) for key in (A, C)]) == [5, 5]
    assert [len(node.heard) for node in cluster.nodes] == [heard[0] + 1, 0, heard[2] + 1]


@pytest.mark.parametrize("is_worker", [True, False])
def test_other_scripts_and_other_processes_load_what_they_need(cluster, make_client, is_worker):
    """A caller needs one of them."""
    client = make_client()
    if is_worker:
        client.cluster.waits_less = True
    loaded = knows_what_it_was_told(cluster.nodes[0])
    keys = dict.fromkeys(load("page").keys, A)
    values = dict.fromkeys(load("page").args, "")
    sent = [load("page").call(keys, **values)] if is_worker else [call(A), call(A)]
    assert client.calls(sent) == [5] * len(sent)
    assert loaded == {sent[0].script.text(True): 1}


def test_a_master_that_answers_after_the_timeout_costs_no_second_one(cluster, make_client, monkeypatch):
    """The thread of the map waited longer, and found it there: all others waited for it again, for ever."""
    monkeypatch.setattr(cluster_map, "BETWEEN_READINGS", 0.0)
    client = make_client(socket_timeout=0.2)
    assert results(client, A, B) == [1, 1]
    node, late, asked = cluster.nodes[0], threading.Event(), []
    slots = node._slots

    def slots_late():
        asked.append(1)
        late.wait(0.5)
        return slots()

    node._slots, node.answer = slots_late, lambda words: late.wait(0.5) and number(1)
    client.cluster.map._seeds[:] = [cluster.nodes[1].address]
    assert isinstance(results(client, A)[0], StoreUnavailable)

    def is_asked_again():
        before = len(asked)
        client.cluster.map.refresh()
        eventually(lambda: len(asked) > before and "lowkiq-cluster-map" not in threads())
        return node.address in client.cluster.map.outages.unresponsive

    assert all(is_asked_again() for _ in range(3))
    late.set()
    eventually(lambda: results(client, A) == [1])
