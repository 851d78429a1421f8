"""Failures by group, from a run to the actions of operators."""

from __future__ import annotations

import json

import pytest

from celery_lowkiq import ordered_task
from celery_lowkiq.rules.fingerprints import fingerprint
from celery_lowkiq.rules.job_filter import FailureFilter
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.progress import Stop


@pytest.fixture
def shop(lowkiq_app):
    """Fails by the payload: "sku <n>" or "json"; dies unless the payload ends with "later"."""

    def parse(text):
        return json.loads(text)

    @ordered_task(app=lowkiq_app, name="shop", shards=3, dont_retry=(ValueError,), ignore_result=True)
    def shop(payloads_by_id):
        ((payload,),) = payloads_by_id.values()
        if payload == "json":
            parse("{")
        if payload == "later":
            raise OSError("try 1 failed")
        if payload.startswith("sku"):
            raise ValueError(f"bad {payload}")

    return shop


def fill(lowkiq, shop, **payloads):
    for job_id, payload in payloads.items():
        shop.delay(job_id, payload)
    lowkiq.drain(propagate=False)


def test_failures_are_grouped_with_counts_and_an_example(lowkiq, shop):
    fill(lowkiq, shop, a="sku 1", b="sku 2", c="json", d="later", e="fine")
    found = shop.ordered_queue.failures()
    groups = {one.error: one for one in found.groups}
    assert groups.keys() == {
        "ValueError: bad sku *",
        "json.decoder.JSONDecodeError: "
        "Expecting property name enclosed in double quotes: line * column * (char *)",
        "OSError: try * failed",
    }
    sku, later = groups["ValueError: bad sku *"], groups["OSError: try * failed"]
    assert (sku.count, sku.failing, sku.dead) == (2, 0, 2)
    assert (later.failing, later.dead) == (1, 0)
    assert sku.where == f"{__name__}.shop"
    assert sku.example.startswith("Traceback (most recent call last):\n")
    assert 'raise ValueError(f"bad {payload}")' in sku.example
    assert [one.where for one in found.groups if "JSON" in one.error] == [f"{__name__}.parse"]
    assert (found.searched, found.jobs) == (4, 4)


def test_jobs_share_the_frames_of_their_group(lowkiq, lowkiq_app, shop):
    fill(lowkiq, shop, a="sku 1", b="sku 2")
    queue = shop.ordered_queue
    client = queue._context.store.client.servers.redis
    for job_id in "ab":
        stored = client.hget(shard_keys(queue.stored_spec().shard_of(job_id))["dead_errors"], job_id)
        assert b"raise ValueError" not in stored
        assert len(stored) < 150
    shown = queue.job("b").dead.error
    assert 'raise ValueError(f"bad {payload}")' in shown
    assert shown.endswith("ValueError: bad sku 2")
    assert "ValueError: bad sku 2" in queue.why("b").text


def test_a_group_stays_when_its_jobs_have_succeeded(lowkiq, shop):
    fill(lowkiq, shop, a="sku 1")
    shop.ordered_queue.delete_dead_all()
    (group,) = shop.ordered_queue.failures().groups
    assert (group.count, group.failing, group.dead) == (1, 0, 0)


def test_errors_without_a_group_make_their_own(lowkiq, shop):
    shop.apply_async(("a", "fine"), countdown=60)
    shop.ordered_queue.bury(["a"])
    (group,) = shop.ordered_queue.failures().groups
    assert (group.error, group.count, group.dead) == ("moved to the morgue by hand", 1, 1)
    assert shop.ordered_queue.matching(FailureFilter(failure=group.fingerprint), dead=True).ids == ("a",)


@pytest.fixture
def dead(lowkiq, shop):
    """30 jobs died of a sku and 5 of JSON."""
    fill(lowkiq, shop, **{f"s{n}": f"sku {n}" for n in range(30)}, **{f"j{n}": "json" for n in range(5)})
    return shop.ordered_queue


def test_all_that_match_are_requeued(dead):
    wanted = FailureFilter(error="ValueError: bad sku*")
    found = dead.matching(wanted, dead=True)
    assert (found.count, found.searched, found.jobs, len(found.ids)) == (30, 35, 35, 30)
    assert dead.change_matching(dead.requeue, wanted, dead=True) == 30
    assert {job.id[0] for job in dead.morgue().items} == {"j"}


def test_a_search_is_bounded(dead):
    found = dead.matching(FailureFilter(error="*"), dead=True, limit=20)
    assert (found.count, found.searched, found.jobs) == (20, 20, 35)


def test_the_time_is_part_of_a_filter(dead):
    assert dead.matching(FailureFilter(since=9e9), dead=True).searched == 0
    assert dead.matching(FailureFilter(since=1.0), dead=True).count == 35


def test_a_limit_ends_it(dead):
    assert dead.change_matching(dead.requeue, FailureFilter(error="*"), dead=True, limit=7) == 7
    assert dead.stats().morgue_length == 28


def test_a_stop_leaves_the_rest_as_it_was(dead):
    def progress(count):
        if count:
            raise Stop

    with pytest.raises(Stop):
        dead.change_matching(dead.requeue, FailureFilter(error="*"), dead=True, rate=20, progress=progress)
    # A step of a change at 20/s.
    assert dead.stats().morgue_length == 30


def test_jobs_that_fail_again_meanwhile_are_not_found_again(lowkiq, dead):
    def requeue_and_run(ids, progress=None):
        count = dead.requeue(ids)
        lowkiq.drain(propagate=False)
        return count

    assert dead.change_matching(requeue_and_run, FailureFilter(error="*"), dead=True, rate=1000) == 35
    assert dead.stats().morgue_length == 35


def test_only_failed_jobs_are_buried(lowkiq, shop):
    fill(lowkiq, shop, a="later")
    shop.apply_async(("b", "fine"), countdown=60)
    queue = shop.ordered_queue
    assert queue.bury(["a", "b"], only_failed=True) == 1
    assert queue.delete(["b"], only_failed=True) == 0
    assert [job.id for job in queue.jobs().items] == ["b"]


def test_the_fingerprint_of_a_job_is_that_of_its_error(lowkiq, shop):
    fill(lowkiq, shop, a="sku 1")
    (group,) = shop.ordered_queue.failures().groups
    assert group.fingerprint != fingerprint(ValueError("bad sku 1")).id
    assert shop.ordered_queue.failures(group.fingerprint).groups == (group,)
