"""Names as people type them."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_lowkiq.integration.app import read_queue_name
from celery_lowkiq.integration.bootstep.command_line import warn_short_names
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.text import LISTED, full_names, listed_names, similar_names

KNOWN = ["a.sync", "b.sync", "proj.orders.ship", "ship", "sync_order"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("ship", ["ship"]),
        ("orders.ship", ["proj.orders.ship"]),
        ("sync", ["a.sync", "b.sync"]),
        ("hip", []),
        ("", []),
        (".ship", []),
    ],
)
def test_a_last_part_is_whole_parts_and_the_name_itself_goes_first(given, found):
    """F6: an unambiguous last part is enough."""
    assert full_names(given, KNOWN) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("sync_ordr", ["sync_order"]),
        ("orders.shp", ["proj.orders.ship"]),
        ("shipp", ["proj.orders.ship", "ship"]),
        ("x", []),
    ],
)
def test_similar_names(given, found):
    """F6: suggestions on typing errors."""
    assert similar_names(given, KNOWN) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sync", "queue='sync' is invalid: expected the name of one ordered queue. Several end so: a.sync, "),
        ("sync_ordr", "expected an ordered queue of the app. Did you mean 'sync_order'?"),
        ("nothing", "The app has a.sync, b.sync, proj.orders.ship, ship, sync_order"),
    ],
)
def test_what_is_no_queue_is_refused_with_a_way_out(given, said):
    """F6: what is ambiguous is refused, because an action on the wrong queue may delete jobs."""
    with pytest.raises(InvalidCall) as refused:
        read_queue_name(given, KNOWN)
    assert said in str(refused.value)


def test_an_app_without_ordered_tasks_is_asked_for():
    with pytest.raises(InvalidCall, match=r"none: does -A name it\?"):
        read_queue_name("sync", [])


@pytest.mark.parametrize(("declared", "count"), [((), 2), (("sync",), 0)])
def test_a_short_name_at_q_is_a_brokers_queue_and_is_asked_about(caplog, declared, count):
    """F6: a worker must not take the one for the other by itself."""
    app = Celery("short", set_as_current=False)
    app.conf.task_queues = declared
    options = {"queues": "celery,sync,sync_order", "exclude_queues": ["sync"]}
    warn_short_names(app, ["proj.sync", "sync_order"], options)
    assert len(caplog.records) == count
    assert (
        count == 0
        or "-Q names the broker's queue sync: did you mean the ordered queue proj.sync?" in caplog.text
    )


def test_a_long_list_is_cut():
    assert listed_names([f"q{n:02}" for n in range(LISTED + 3)]).endswith("q19 and 3 more")
