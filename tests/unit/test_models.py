"""Tests of ``rules/models.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Layout, QueueSpec, ShardRef

IDS = [str(n) for n in range(200)]


@pytest.mark.parametrize(
    "route, layout", [("24", Layout(24)), ("24>48", Layout(48, 24)), ("4>3", Layout(3, 4))]
)
def test_a_layout_is_stored_as_its_route(route, layout):
    assert layout.route == route
    assert Layout.parse(route) == layout


@pytest.mark.parametrize("route", ["", "closed", "0", "5000", "x", "1>", ">1", "1>2>3", "1 > 2", "-1", "1>0"])
def test_other_text_is_no_layout(route):
    assert Layout.parse(route) is None


def test_all_shards_of_both_numbers_may_have_jobs():
    assert [Layout(4).count, Layout(4, 6).count, Layout(6, 4).count] == [4, 6, 6]
    queue = QueueSpec("q", shards=4).with_layout(Layout(2, 3))
    assert queue.shard_refs() == tuple(ShardRef("q", index) for index in range(3))
    assert {queue.shard_of(job_id).index for job_id in IDS} == {0, 1}


def test_an_id_that_moves_has_a_former_home():
    assert {Layout(4).former_home(job_id) for job_id in IDS} == {None}
    layout = Layout(4, 2)
    for job_id in IDS:
        former = layout.former_home(job_id)
        assert former in (None, Layout(2).home(job_id))
        assert former != layout.home(job_id)
        assert (former is None) == (Layout(2).home(job_id) == layout.home(job_id))
