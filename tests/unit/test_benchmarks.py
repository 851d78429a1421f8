"""The parts of the bench that decide: figures from samples, targets, the table, the comparison of runs."""

from __future__ import annotations

import pytest

from benchmarks import profile
from benchmarks.report import Change, changes, compare, number, table
from benchmarks.row import Row, Target
from benchmarks.statistics import percentile, rate


def row(**fields) -> Row:
    return Row(**{"name": "r", "text": "work", "unit": "us", "ours": 10.0, **fields})


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5], 99, 5), ([3, 1, 2], 50, 2), (range(1, 101), 99, 99), (range(1, 1001), 99, 990), ([1, 2], 0, 1)],
)
def test_percentile_is_a_value_that_was_measured(values, percent, expected):
    assert percentile(list(values), percent) == expected


def test_percentile_of_nothing():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_rate_counts_neither_start_nor_end():
    boot, work, tail = [(0.0, 0), (5.0, 0)], [(6.0, 100), (7.0, 500), (8.0, 900)], [(30.0, 1000)]
    assert rate([*boot, *work, *tail]) == 400


def test_rate_of_jobs_that_all_ended_at_once():
    with pytest.raises(ValueError, match="too few"):
        rate([(0.0, 0), (1.0, 10)])


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({}, None),
        ({"targets": (Target(10),)}, True),
        ({"targets": (Target(9),)}, False),
        ({"targets": (Target(11, at_least=True),)}, False),
        ({"other": 20, "targets": (Target(0.5, of_ratio=True),)}, True),
        ({"other": 200, "speedup": True, "targets": (Target(20, at_least=True, of_ratio=True),)}, True),
        ({"other": 200, "speedup": True, "targets": (Target(9), Target(20, True, True))}, False),
        ({"targets": (Target(0.5, of_ratio=True),)}, False),
    ],
)
def test_a_row_is_met_when_all_its_targets_are(fields, met):
    assert row(**fields).met is met


def test_a_row_survives_the_results_file():
    whole = row(other=2.0, targets=(Target(1.0),), repeats=(9.0, 10.0), calibration=5.0)
    assert Row.from_json(whole.as_json()) == whole


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({}, {"ours": 11.0}, 0.1),
        ({"calibration": 100.0}, {"ours": 20.0, "calibration": 200.0}, 0.0),
        ({"other": 100.0, "yardstick": "other"}, {"other": 50.0, "yardstick": "other"}, 1.0),
        ({"more_is_better": True}, {"ours": 8.0, "more_is_better": True}, 0.25),
        ({"yardstick": "nothing", "calibration": 1.0}, {"yardstick": "nothing", "calibration": 9.0}, 0.0),
    ],
)
def test_runs_are_compared_by_each_rows_yardstick(before, after, change):
    (found,) = compare([row(**before)], [row(**after), row(name="new")])
    assert found.change == pytest.approx(change)


def test_only_what_became_slower_by_more_than_5_percent_is_marked():
    lines = changes([Change("a", 0.051, "other"), Change("b", 0.049, "machine"), Change("c", -0.5, "other")])
    assert [line.split("|")[1].strip() for line in lines.splitlines() if "SLOWER" in line] == ["a"]


def test_the_table():
    head, rule, line = table([row(other=20.0, other_text="Celery", targets=(Target(15),))]).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["r", "work", "10.0", "us", "20.0 Celery", "0.50x", "<= 15", "met"]
    assert len(head) == len(rule) == len(line)


@pytest.mark.parametrize(("value", "text"), [(None, ""), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")])
def test_numbers_show_the_digits_that_matter(value, text):
    assert number(value) == text


LANE = ("/x/celery_lowkiq/worker/lane.py", 1, "_main")
REDIS = ("/x/site-packages/redis/client.py", 2, "execute_command")
HELPER = ("/lib/python3/json/decoder.py", 3, "decode")
BUILT_IN = ("~", 0, "<built-in method builtins.len>")
RECV = ("~", 0, "<method 'recv_into' of '_socket.socket' objects>")


def test_a_profile_gives_built_ins_and_helpers_to_their_callers_and_sockets_to_the_network():
    stats = {
        LANE: (10, 10, 100e-6, 0, {}),
        REDIS: (10, 10, 200e-6, 0, {LANE: (10, 10, 0, 0)}),
        HELPER: (10, 10, 40e-6, 0, {LANE: (10, 10, 0, 0)}),
        BUILT_IN: (40, 40, 40e-6, 0, {HELPER: (30, 30, 0, 0), REDIS: (10, 10, 0, 0)}),
        RECV: (10, 10, 300e-6, 0, {REDIS: (10, 10, 0, 0)}),
    }
    found = profile.costs(stats, jobs=10, microseconds=68.0, prices=(1.0, 1.0))
    sums = {group: sum(cost.microseconds for cost in costs) for group, costs in found.items()}
    assert sums == pytest.approx({"ours: lane": 17.0, "client (redis-py)": 21.0, profile.NETWORK: 30.0})


def test_a_profile_takes_off_what_it_costs_itself():
    stats = {LANE: (10, 10, 100e-6, 0, {}), BUILT_IN: (40, 40, 100e-6, 0, {LANE: (40, 40, 0, 0)})}
    found = profile.costs(stats, jobs=10, microseconds=11.0, prices=(5.0, 1.0))
    assert {cost.place: cost.microseconds for cost in found["ours: lane"]} == pytest.approx(
        {LANE: 5.0, BUILT_IN: 6.0}
    )


def test_helpers_that_call_each_other_belong_to_whoever_calls_them_from_outside():
    other = ("/lib/python3/json/scanner.py", 4, "scan")
    stats = {
        LANE: (10, 10, 100e-6, 0, {}),
        HELPER: (10, 30, 40e-6, 0, {LANE: (10, 10, 0, 0), other: (0, 20, 0, 0)}),
        other: (10, 20, 40e-6, 0, {HELPER: (10, 20, 0, 0)}),
    }
    assert set(profile.costs(stats, jobs=10, microseconds=1.0, prices=(1.0, 1.0))) == {"ours: lane"}
