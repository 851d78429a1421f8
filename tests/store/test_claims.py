"""Tests of ``store/claims.py``."""

from __future__ import annotations

import logging

from celery_lowkiq.rules.models import Disposition, Failure, Settlement
from celery_lowkiq.store.claims import MAX_GROUPS
from celery_lowkiq.store.counts import count_failures, failed_jobs, failure_groups
from celery_lowkiq.store.keys import failure_ranks_key, failures_key
from celery_lowkiq.store.listings import ShardReads
from tests.store.helpers import ONE, claim, push, take


def fail(store, lease, *prints, disposition=Disposition.RETRY):
    """Let a job fail for each fingerprint, in one settle."""
    for number, _ in enumerate(prints):
        push(store, str(number), ("a", 1))
    claimed = claim(store, lease, len(prints))
    settlements = [
        Settlement(
            job.id,
            claimed.number,
            disposition,
            0,
            0.0,
            b"error",
            failure=Failure(own, b"about " + own.encode()),
        )
        for job, own in zip(claimed.jobs, prints, strict=True)
    ]
    return store.settle(ONE, lease, settlements)


def groups(store):
    return {one.fingerprint: one for one in failure_groups(store.client, ONE)}


def test_each_failure_counts_in_its_group(store):
    lease = take(store)
    fail(store, lease, "a", "a", "b")
    first = groups(store)
    assert {own: (one.count, one.about) for own, one in first.items()} == {
        "a": (2, b"about a"),
        "b": (1, b"about b"),
    }
    fail(store, lease, "a")
    (again,) = [one for own, one in groups(store).items() if own == "a"]
    assert (again.count, again.first_seen) == (3, first["a"].first_seen)
    assert again.last_seen > first["a"].last_seen


def test_a_queue_has_200_groups_and_keeps_those_that_fail_most(store, client):
    lease = take(store)
    fail(store, lease, "often", "often")
    for start in range(0, 2 * MAX_GROUPS, 100):
        fail(store, lease, *(f"once-{start + n}" for n in range(100)))
    assert len(groups(store)) == MAX_GROUPS
    assert groups(store)["often"].count == 2
    assert client.zcard(failure_ranks_key("orders")) == MAX_GROUPS
    assert client.hlen(failures_key("orders")) == 2 * MAX_GROUPS


def test_success_touches_no_group(store, client):
    push(store, "1", ("a", 1))
    lease = take(store)
    claimed = claim(store, lease)
    store.settle(ONE, lease, [Settlement("1", claimed.number, Disposition.DONE)])
    assert not client.exists(failures_key("orders"), failure_ranks_key("orders"))


def test_a_key_of_another_type_does_not_stop_the_settle(store, client, caplog):
    client.set(failures_key("orders"), "x")
    lease = take(store)
    with caplog.at_level(logging.WARNING):
        reply = fail(store, lease, "a")
    assert reply.accepted == {"0"}
    assert "failures: the end of some calls of shard orders/0 is unknown" in caplog.text


def test_foreign_data_is_skipped(store, client):
    client.hset(failures_key("orders"), mapping={"a": "x", "about:a": "y", "b": "1 2 3", "about:c": "z"})
    assert groups(store) == {}


def test_errors_of_failing_and_dead_jobs_are_read_without_payloads(store):
    lease = take(store)
    fail(store, lease, "a")
    reads = ShardReads(store.client, ONE)
    ((failing,),) = failed_jobs(reads, dead=False)
    assert (failing.id, failing.error) == ("0", b"error")
    fail(store, lease, "a", disposition=Disposition.BURY)
    ((dead,),) = failed_jobs(reads, dead=True)
    assert (dead.id, dead.error) == ("0", b"error")
    assert list(failed_jobs(reads, dead=True, since=dead.at + 1)) == []
    assert (count_failures(reads, dead=True), count_failures(reads, dead=False)) == (1, 0)


def test_all_pages_of_all_shards_are_read(store, monkeypatch):
    monkeypatch.setattr("celery_lowkiq.store.counts.PAGE", 3)
    lease = take(store)
    fail(store, lease, *"aaaaaaa", disposition=Disposition.BURY)
    pages = list(failed_jobs(ShardReads(store.client, ONE), dead=True))
    assert [len(page) for page in pages] == [3, 3, 1]
    assert sorted(job.id for page in pages for job in page) == list("0123456")
