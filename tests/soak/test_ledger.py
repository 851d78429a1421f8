"""The ledger of a soak run, with seeded violations."""

from __future__ import annotations

import json

from celery_lowkiq.rules.views import Stats
from tests.soak.ledger import judge_ledger

PLACE = {"queue": "orders", "shard": 0, "epoch": 1}


def run_of(number, at, payloads, failed=()):
    run = {"pid": 7, "run": number}
    return [
        {"event": "start", "at": at, "claimed_at": at, "payloads": payloads, **run, **PLACE},
        {"event": "end", "at": at + 0.5, "failed": list(failed), "queue": "orders", **run},
    ]


def push(at, **payloads):
    return {
        "event": "push",
        "queue": "orders",
        "pid": 1,
        "payloads": payloads,
        "called_at": at - 0.1,
        "at": at,
    }


def failed(tmp_path, lines, **counts):
    (tmp_path / "7.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stats = {"orders": Stats(**counts)}
    return judge_ledger(tmp_path, stats, 10.0, drained=True).failed()


CLEAN = [push(1, a=1, b=1), *run_of(0, 2, {"a": [1], "b": [1]}), push(3, a=2), *run_of(1, 4, {"a": [2]})]


def test_a_clean_ledger_passes(tmp_path):
    assert failed(tmp_path, CLEAN) == set()


def test_a_payload_without_a_run_is_lost_unless_a_policy_dropped_it_or_it_died(tmp_path):
    lines = [*CLEAN, push(5, a=3)]
    assert failed(tmp_path, lines) == {"lost payloads"}
    assert failed(tmp_path, lines, dropped=1) == set()
    assert failed(tmp_path, lines, dead=1) == set()


def test_a_payload_that_is_given_again_after_its_run_is_lost_without_another_run(tmp_path):
    assert failed(tmp_path, [*CLEAN, push(5, a=2)]) == {"lost payloads"}


def test_an_id_that_failed_in_a_batch_needs_another_run(tmp_path):
    lines = [push(1, a=1, b=1), *run_of(0, 2, {"a": [1], "b": [1]}, failed=["b"])]
    assert failed(tmp_path, lines) == {"lost payloads"}
    assert failed(tmp_path, [*lines, *run_of(1, 3, {"b": [1]})]) == set()


def test_two_runs_of_an_id_at_once(tmp_path):
    lines = [push(1, a=1), push(1, a=2), *run_of(0, 2, {"a": [1]}), *run_of(1, 2.2, {"a": [2]})]
    assert failed(tmp_path, lines) == {"overlapping executions"}


def test_a_payload_that_overtakes(tmp_path):
    lines = [push(1, a=1), push(1, a=2), *run_of(0, 2, {"a": [2]}), *run_of(1, 3, {"a": [1]})]
    assert failed(tmp_path, lines) == {"order inversions"}


def test_a_call_without_a_result_and_a_queue_without_a_run(tmp_path):
    unanswered = {"event": "unanswered", "queue": "orders", "task_id": "1"}
    assert failed(tmp_path, [*CLEAN, unanswered]) == {"calls without a result"}
    assert failed(tmp_path, []) == {"queues without a run"}


def test_only_an_end_that_nothing_explains_fails(tmp_path):
    deaths = [
        {"event": "death", "pid": 1, "dead": 8, "at": 9.0, "cause": cause}
        for cause in ("kill", "stop", "deadline")
    ]
    assert failed(tmp_path, [*CLEAN, *deaths]) == set()
    assert failed(tmp_path, [*CLEAN, {**deaths[0], "cause": "unexpected"}]) == {"unexpected ends of workers"}
