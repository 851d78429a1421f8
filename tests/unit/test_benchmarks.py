"""The parts of the bench that decide: figures from samples, targets, the table, the comparison of runs."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from benchmarks import profile
from benchmarks.cost import Cost, interleaved
from benchmarks.report import (
    BEGIN,
    END,
    PAGE,
    Change,
    changes,
    compare,
    guard,
    into,
    measured,
    number,
    table,
    worst,
)
from benchmarks.row import Row, Side, Target
from benchmarks.statistics import middle_part, percentile, rate


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


def test_the_middle_part_counts_all_that_grows():
    samples = [(0.0, 0, 3.0, 0.0), (1.0, 10, 3.5, 0.1), (3.0, 90, 5.5, 0.5), (9.0, 100, 9.0, 9.0)]
    assert middle_part(samples) == [2.0, 80, 2.0, 0.4]


def beside(figure: float | None = 20.0, **fields) -> tuple[Side, ...]:
    return (Side("Celery", figure, **fields),)


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({}, None),
        ({"targets": (Target(10),)}, True),
        ({"targets": (Target(9),)}, False),
        ({"targets": (Target(11, at_least=True),)}, False),
        ({"others": beside(), "targets": (Target(0.5, "Celery"),)}, True),
        ({"others": beside(), "targets": (Target(0.4, "Celery"),)}, False),
        ({"others": beside(), "targets": (Target(9), Target(0.5, "Celery"))}, False),
        ({"others": beside(None), "targets": (Target(0.5, "Celery"),)}, None),
        ({"others": beside(None), "targets": (Target(10), Target(0.5, "Celery"))}, True),
    ],
)
def test_a_row_is_met_when_all_targets_are_whose_side_is_installed(fields, met):
    assert row(**fields).met is met


@pytest.mark.parametrize(("client", "met"), [(4.0, True), (3.0, False)])
def test_a_target_of_processor_time(client, met):
    one = row(cpu={"client": 2.0}, others=beside(cpu={"client": client}))
    assert replace(one, targets=(Target(0.5, "Celery", cpu="client"),)).met is met


def test_a_row_survives_the_results_file():
    others = (*beside(2.0, cpu={"worker": 1.5}, repeats=(1.0, 2.0)), Side("Sidekiq", None))
    whole = row(others=others, targets=(Target(1.0),), repeats=(9.0, 10.0), calibration=5.0, cpu={"redis": 1})
    assert Row.from_json(json.loads(json.dumps(whole.as_json()))) == whole


def test_rounds_are_interleaved_in_changing_orders():
    order: list[str] = []

    def measure(name: str) -> Cost:
        order.append(name)
        return Cost(float(len(order)), worker=1.0)

    found = interleaved(9, {"ours": lambda: measure("a"), "gone": None, "Celery": lambda: measure("b")})
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert set(rounds) == {("a", "b"), ("b", "a")}
    assert {name: [cost.wall for cost in costs] for name, costs in found.items()} == {
        name: [place for place, each in enumerate(order, 1) if each == side]
        for name, side in {"ours": "a", "gone": "", "Celery": "b"}.items()
    }


def test_the_figure_of_a_side_is_the_median_of_its_rounds():
    costs = {"ours": [Cost(wall, redis=wall / 2) for wall in (1.0, 9.0, 2.0)], "Sidekiq": []}
    found = Row.of_costs("r", "work", costs, Target(0.5, "Sidekiq"))
    assert (found.ours, found.cpu, found.repeats) == (2.0, {"redis": 1.0}, (1.0, 9.0, 2.0))
    assert found.others == (Side("Sidekiq", None),)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"calibration": 100.0}, {"ours": 20.0, "calibration": 200.0}, 0.0),
        ({"others": beside(100.0)}, {"others": beside(50.0)}, 1.0),
        ({"more_is_better": True}, {"ours": 8.0, "more_is_better": True}, 0.25),
        ({"yardstick": "nothing", "calibration": 1.0}, {"yardstick": "nothing", "calibration": 9.0}, 0.0),
        (
            {"yardstick": "machine", "others": beside(1.0), "calibration": 1.0},
            {"yardstick": "machine", "others": beside(9.0), "calibration": 2.0},
            -0.5,
        ),
    ],
)
def test_runs_are_compared_by_each_rows_yardstick(before, after, change):
    (found,) = compare([row(**before)], [row(**after), row(name="new")])
    assert found.change == pytest.approx(change)


def test_runs_are_compared_by_all_sides_that_both_have():
    before = row(others=(Side("Sidekiq", 10.0), Side("Celery", 100.0)))
    after = row(ours=20.0, others=(Side("Sidekiq", 20.0), Side("Celery", 100.0), Side("limit", 1.0)))
    found = compare([before], [after])
    assert {change.yardstick: (change.change, change.slower) for change in found} == {
        "Sidekiq": (0.0, False),
        "Celery": (1.0, True),
    }


def test_runs_are_compared_by_processor_time_too():
    before = row(cpu={"client": 1.0, "redis": 3.0}, others=beside(cpu={"client": 2.0, "redis": 2.0}))
    after = replace(before, cpu={"client": 2.0, "redis": 4.0})
    assert compare([before], [after]) == [
        Change("r", 0.0, "Celery"),
        Change("r", 0.5, "Celery, CPU"),
    ]


def test_only_what_became_slower_by_more_than_5_percent_is_marked():
    lines = changes([Change("a", 0.051, "other"), Change("b", 0.049, "machine"), Change("c", -0.5, "other")])
    assert [line.split("|")[1].strip() for line in lines.splitlines() if "SLOWER" in line] == ["a"]


def test_the_guard_fails_when_a_row_is_slower(capsys):
    before, worse = row(others=beside(100.0)), row(ours=10.6, others=beside(100.0))
    guard([before], [row(ours=10.4, others=beside(100.0)), row(name="new")])
    assert "SLOWER" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="slower than before: r"):
        guard([before], [worse])
    assert "SLOWER" in capsys.readouterr().out


def cells_of(text: str) -> list[list[str]]:
    """The cells of each line below the head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_the_table_has_a_line_for_each_side():
    others = (Side("Celery", 40.0, {"client": 8.0, "redis": 3.0}), Side("Sidekiq", None))
    targets = (Target(9), Target(0.5, "Celery"), Target(0.6, "Celery", cpu="client"), Target(0.4, "Sidekiq"))
    text = table([row(cpu={"client": 4.0}, others=others, targets=targets)])
    ratios, limits = "0.25x, client CPU 0.50x", "<= 0.5x, client CPU <= 0.6x"
    assert cells_of(text) == [
        ["r", "work", "ours", "10.0", "us", "4.00", "", "", "", "<= 9", "MISSED"],
        ["", "", "Celery", "40.0", "us", "8.00", "", "3.00", ratios, limits, "met"],
        ["", "", "Sidekiq", "not installed", "", "", "", "", "", "<= 0.4x", ""],
    ]
    assert len({len(line) for line in text.splitlines()}) == 1


def test_the_worst_run_of_each_row():
    fast = [row(others=beside(100.0), targets=(Target(0.5, "Celery"),)), row(name="free", calibration=5.0)]
    slow = [row(others=beside(50.0), targets=(Target(0.5, "Celery"),)), row(name="free", calibration=9.0)]
    assert worst([fast, slow]) == [slow[0], fast[1]]


def test_the_section_of_the_docs_is_written_between_its_markers():
    page = f"before\n{BEGIN}old\n\ntext{END}\nafter"
    assert into(page, r"new \1") == f"before\n{BEGIN}new \\1{END}\nafter"
    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1


def test_the_section_names_all_runs_and_has_the_last_profile():
    runs = [
        {
            "date": f"2026-11-2{n}T10:00:00+00:00",
            "machine": {"load": n, "ruby": ruby},
            "rows": [row().as_json()],
            "profile": profile,
        }
        for n, ruby, profile in ((1, "3.1", "6.0 us"), (2, "3.3", ""))
    ]
    words, *_, profile = measured(runs).split("\n\n")
    assert profile == "```text\n6.0 us\n```"
    assert " ".join(words.split()) == (
        "The worst run of each row, of these: 2026-11-21 10:00 (load 1), 2026-11-22 10:00 (load 2), UTC. "
        "Measured on: ruby 3.1 or 3.3."
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0.00"), (0.0246, "0.025"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")],
)
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
