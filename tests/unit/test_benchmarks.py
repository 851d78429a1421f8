"""The parts of the bench that decide: figures from samples, targets, the table, the comparison of runs."""

from __future__ import annotations

import threading

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


def in_lane(function):
    """What the function returns in a thread that is named as lanes are."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), name="lane-0")
    thread.start()
    thread.join()
    return found[0]


def test_time_counts_for_the_innermost_group():
    now = [0.0]
    watches = profile.Watches(lambda: now[0])

    def spend(seconds, *inner):
        now[0] += seconds
        for function in inner:
            function()

    client = watches.around("client", lambda: spend(3.0))
    store = watches.around("store", lambda: spend(1.0, client, client))
    in_lane(watches.around("lane", lambda: spend(0.5, store)))
    assert watches.seconds == {"lane": 0.5, "store": 1.0, "client": 6.0}


def test_only_lanes_are_watched():
    watches = profile.Watches()
    assert watches.around("store", lambda: "done")() == "done"
    assert not watches.seconds


def test_the_profile_leaves_idle_time_out():
    lines = profile.text({"idle": 9.0, "store": 30e-6, "lane": 10e-6}, jobs=2, bare=19.0).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["15.0", "us", "75.0%", "store"],
        ["5.0", "us", "25.0%", "lane"],
    ]
