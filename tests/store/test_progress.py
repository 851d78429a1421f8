"""A change in many steps tells how far it is, and stops between two of them when it is told to."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store.actions import DEAD
from celery_lowkiq.store.progress import Stop
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import ONE

MANY = 5000
FOUR = QueueSpec("four", shards=4, batch_size=10)


@pytest.fixture
def actions(store):
    return Actions(store.client)


def stop_when(condition):
    """Says so as soon as what was told meets the condition."""

    def progress(count):
        progress.told.append(count)
        if condition(progress.told):
            raise Stop

    progress.told = []
    return progress


CASES = {
    "delete": ("waiting", lambda actions, progress: actions.delete(ONE, ["1"], progress)),
    "kill": ("waiting", lambda actions, progress: actions.bury(ONE, ["1"], b"boom", progress)),
    "delete_dead": ("dead", lambda actions, progress: actions.delete_dead(ONE, ["1"], progress)),
    "requeue": ("dead", lambda actions, progress: actions.requeue(ONE, ["1"], progress)),
    "requeue_all": ("dead", lambda actions, progress: actions.requeue(ONE, DEAD, progress)),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request, store, actions):
    """Where one id with very many payloads is, and what is done to it."""
    place, act = request.param
    store.push(ONE, [Call("1", b"%05d" % n, float(n)) for n in range(MANY)])
    if place == "dead":
        actions.bury(ONE, ["1"], b"boom")
    return place, act


def payloads_left(store, place):
    found = getattr(Queries(store.client).job(ONE, "1", payload_limit=1), place)
    return found.payload_count if found else 0


def test_a_change_stops_within_one_long_job(case, store, actions):
    place, act = case
    progress = stop_when(lambda told: len(told) == 2)
    with pytest.raises(Stop):
        act(actions, progress)
    assert progress.told == [0, 0]
    assert 0 < payloads_left(store, place) < MANY


def test_who_stops_it_in_its_last_step_asks_too_late(case, store, actions):
    place, act = case
    progress = stop_when(lambda told: told[-1] == 1)
    assert act(actions, progress) == 1
    assert progress.told[-1] == 1
    assert payloads_left(store, place) == 0


def test_a_change_of_many_shards_stops_between_them(store):
    ids = [str(n) for n in range(100)]
    progress = stop_when(lambda told: True)
    with pytest.raises(Stop):
        Pausing(store.client).switch_ids(FOUR, ids, progress, paused=True)
    assert len(progress.told) == 1
    assert 0 < progress.told[0] < 100


def test_a_step_that_finds_nothing_to_do_can_be_stopped_at_too(store, actions):
    with pytest.raises(Stop):
        actions.run_now(FOUR, [str(n) for n in range(100)], stop_when(lambda told: True))
