"""Charts of a history."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.views import DAY, HOUR, Sample
from celery_lowkiq.web.charts import chart_of, history_chart, round_up

NOW = 1_000_020.0


def test_an_increase_counts_at_its_later_sample_and_the_largest_lag_is_kept():
    samples = [
        Sample(NOW - 130, 100, 5, 0.5),
        Sample(NOW - 70, 130, 6, 4.0),
        Sample(NOW - 65, 140, 6, 9.0),
        # The counters were reset.
        Sample(NOW - 5, 20, 0),
    ]
    chart = chart_of(samples, NOW)
    assert len(chart.columns) == 60
    assert chart.columns[-3:] == [Sample(999_900, 40, 1, 9.0), Sample(999_960, 0, 0), Sample(1_000_020, 0, 0)]
    assert (chart.processed, chart.failed, chart.peak, chart.lag) == (40, 1, 41, 9.0)


@pytest.mark.parametrize("span, columns, first", [(HOUR, 60, NOW - 3600), (DAY, 72, NOW - 86_400)])
def test_a_span_has_its_columns(span, columns, first):
    chart = chart_of([], NOW, span)
    assert len(chart.columns) == columns
    assert 0 < chart.columns[0].at - first <= chart.step


@pytest.mark.parametrize(
    "value, top",
    [
        (0, 2),
        (0.4, 2),
        (2, 2),
        (3, 4),
        (10, 10),
        (37, 38),
        (99.5, 100),
        (123, 130),
        (5874, 5900),
        (10**6, 10**6),
    ],
)
def test_the_scale_ends_at_a_round_number_whose_half_is_whole(value, top):
    assert round_up(value) == top


def test_a_chart_without_lag_has_no_line_of_it():
    quiet, late = ([Sample(NOW - 20, 1, 0), Sample(NOW - 10, 2, 0, lag)] for lag in (0.0, 3.0))
    assert "polyline" not in history_chart(chart_of(quiet, NOW), "note")
    assert "lag 3 s" in history_chart(chart_of(late, NOW), "note")
