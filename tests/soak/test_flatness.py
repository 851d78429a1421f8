"""The gates of a soak run on samples that were made up."""

from __future__ import annotations

import pytest

from tests.soak.flatness import LIMIT, flatness_gates

WINDOW = 600.0
END = 3600
STEP = 10


def process(name, at, pid, age, **values):
    measures = {"rss": 80e6, "descriptors": 20, "threads": 10, **values}
    return {"what": "process", "name": name, "at": float(at), "pid": pid, "age": float(age), **measures}


def steady(**changed):
    """A run of one hour; ``changed`` maps a name to a function from time (s) to values."""
    none = lambda at: {}  # noqa: E731
    samples = []
    for at in range(STEP, END, STEP):
        samples.append(
            {"what": "redis", "at": float(at), "memory": 5e6, "keys": 900, "lasting_keys": 300}
            | changed.get("redis", none)(at)
        )
        for name in ("producer", "node4"):
            samples.append(process(name, at, 1, at, **changed.get(name, none)(at)))
        for node in range(4):
            life, age = divmod(at, int(WINDOW))
            values = changed.get("nodes", lambda life, age: {})(life, age)
            samples.append(process(f"node{node}", at, 100 + 10 * life + node, age, **values))
    return samples


def failed(samples):
    gates = list(flatness_gates(samples, WINDOW, "node4"))
    assert all(gate.figure is not None and LIMIT <= gate.limit <= 0.1 for gate in gates)
    return {gate.name for gate in gates if not gate.passed}


def test_a_steady_run_passes_every_gate():
    assert failed(steady()) == set()


@pytest.mark.parametrize(
    "changed, gate",
    [
        ({"redis": lambda at: {"memory": 5e6 + 150 * at}}, "growth of Redis memory"),
        ({"redis": lambda at: {"keys": 900 + at / 30}}, "growth of Redis keys"),
        ({"producer": lambda at: {"rss": 80e6 + 2e3 * at}}, "growth of producer rss"),
        ({"node4": lambda at: {"threads": 10 + at // 500}}, "growth of resident threads"),
        (
            {"nodes": lambda life, age: {"descriptors": 20 + age // 60}},
            "growth of nodes in a life, descriptors",
        ),
        ({"nodes": lambda life, age: {"rss": 80e6 + 1e6 * life}}, "growth of nodes over lives, rss"),
    ],
)
def test_what_grows_fails_its_gate(changed, gate):
    assert failed(steady(**changed)) == {gate}


def test_a_count_may_grow_by_one_and_not_by_two():
    one, two = ({"node4": lambda at, n=n: {"descriptors": 20 + n * (at > 3000)}} for n in (1, 2))
    assert failed(steady(**one)) == set()
    assert failed(steady(**two)) == {"growth of resident descriptors"}


def test_growth_within_the_warm_up_and_shrinking_pass():
    warm = {"node4": lambda at: {"rss": 60e6 + 30e3 * min(at, 1800)}}
    shrinking = {"redis": lambda at: {"memory": 5e6 - 100 * at}}
    young = {"nodes": lambda life, age: {"rss": 60e6 + 50e3 * min(age, 300)}}
    assert failed(steady(**warm, **shrinking, **young)) == set()


def test_a_run_that_is_too_short_measures_nothing():
    samples = [sample for sample in steady() if sample["at"] <= 300]
    assert all(gate.figure is None for gate in flatness_gates(samples, WINDOW, "node4"))
