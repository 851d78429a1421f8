"""Masters whose clocks differ: a time is compared with the clock of the master that it came from."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.rules.errors import ShardsUnreachable
from celery_lowkiq.rules.health import check_health
from celery_lowkiq.rules.models import Disposition, QueueSpec
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.rules.topology import Kind, Topology
from celery_lowkiq.rules.views import NodeReport, NodeUpdate
from celery_lowkiq.store import node_reports
from celery_lowkiq.store.actions import DEAD
from celery_lowkiq.store.counts import failed_jobs
from celery_lowkiq.store.health import read_state
from celery_lowkiq.store.keys import queue_key, reports_key, shard_keys
from celery_lowkiq.store.listings import ShardReads
from celery_lowkiq.store.node_reports import sample_call
from tests.bound import Actions, Diagnosis, Pausing, Queries
from tests.store.helpers import claim, end, push, take
from tests.store.skewed import skewed

pytestmark = pytest.mark.one_server

TWO = QueueSpec("orders", shards=2, batch_size=10)
SHARDS = FIRST, SECOND = TWO.shard_refs()
REPORTS, OWN = reports_key(), queue_key("orders")
#: An id of each shard.
IDS = {TWO.shard_of(job_id): job_id for job_id in "0123456789"}
OWNER = "w@host-0123"


def key(shard):
    return shard_keys(shard)["meta"]


def tell(store, uptime=1.0, **news):
    report = NodeReport("w@host", OWNER, 7, 10.0, False, False, ("orders",), ())
    return store.beat([], OWNER, 2, 1, NodeUpdate(report, uptime, **news)).reply


@pytest.mark.parametrize("seconds", [500, -500])
def test_a_living_owner_is_not_silent(client, seconds):
    store = skewed(client, {key(FIRST): seconds})
    push(store, IDS[FIRST], ("a", 1), queue=TWO)
    take(store, TWO, 0, OWNER)
    tell(store)
    facts = Diagnosis(store.client).facts(TWO, IDS[FIRST], rate=None, max_retries=1, read=lambda error: error)
    assert facts.now == pytest.approx(time.time() + seconds, abs=60)
    assert facts.owner.alive
    assert facts.owner.silent < 10


def test_an_owner_that_is_silent_is_shown_as_such(client):
    store = skewed(client, {key(FIRST): -500})
    push(store, IDS[FIRST], ("a", 1), queue=TWO)
    take(store, TWO, 0, OWNER)
    tell(skewed(client, {REPORTS: -40}))
    facts = Diagnosis(store.client).facts(TWO, IDS[FIRST], rate=None, max_retries=1, read=lambda error: error)
    assert not facts.owner.alive
    assert 40 <= facts.owner.silent < 100


@pytest.mark.parametrize("seconds", [500, -500])
def test_a_rate_limit_is_that_of_the_queues_own_clock(client, seconds):
    store = skewed(client, {key(FIRST): seconds})
    push(store, IDS[FIRST], ("a", 1), queue=TWO)
    store.tokens(TokenRequest("orders", "me", 1, 0.01, 1))
    facts = Diagnosis(store.client).facts(TWO, IDS[FIRST], rate=None, max_retries=1, read=lambda error: error)
    assert facts.rate == 0.01
    assert 40 < facts.token_wait <= 100


def texts(store):
    topology = Topology(Kind.CLUSTER, (), 10.0)
    found = check_health(read_state(store.client, [TWO], topology))
    return " ".join(finding.text for finding in found if finding.subject == "queue orders")


@pytest.mark.parametrize("seconds", [5000, -5000])
def test_a_shard_that_was_free_just_now_is_not_orphaned(client, seconds):
    store = skewed(client, {REPORTS: seconds, key(SECOND): seconds / 2})
    for shard in range(2):
        store.release(take(store, TWO, shard, "other-1"))
    tell(store, uptime=3600.0)
    assert "No node takes" not in texts(store)


def test_a_shard_that_nobody_takes_is_found_by_its_own_clock(client):
    for shard in range(2):
        before = skewed(client, {key(SHARDS[shard]): -100})
        before.release(take(before, TWO, shard, "other-1"))
    store = skewed(client, {REPORTS: -5000, key(SECOND): 50})
    tell(store, uptime=3600.0)
    assert "No node takes shards 0, 1" in texts(store)


@pytest.mark.parametrize("seconds", [5000, -5000])
def test_a_pause_is_as_old_as_by_its_own_clock(client, seconds):
    store = skewed(client, {REPORTS: 2 * seconds, OWN: seconds, key(FIRST): -seconds, key(SECOND): seconds})
    pausing = Pausing(store.client)
    pausing.switch_queue(TWO, paused=True)
    pausing.switch_shard(TWO, 0, paused=True)
    earlier = skewed(client, {key(SECOND): seconds - 600})
    Pausing(earlier.client).switch_shard(TWO, 1, paused=True)
    found = texts(store)
    queue_pause, shard_pauses = found[found.index("It has been paused") :].split("Shards paused", 1)
    assert " s ago" in queue_pause
    assert "(10 min" in shard_pauses


def test_samples_have_the_clock_of_the_master_that_stores_them(client):
    store = skewed(client, {REPORTS: 5000, OWN: -5000, key(FIRST): 50})
    told = tell(store, counted=(TWO,))
    assert told.now == pytest.approx(time.time() + 5000, abs=60)
    tell(store, samples=told.samples)
    found, _ = node_reports.histories(store.client, [TWO])
    (sample,) = found[TWO.name]
    assert sample.at == pytest.approx(time.time() - 5000, abs=60)


def test_the_rate_of_a_shard_is_that_of_the_queues_own_clock(client):
    store = skewed(client, {REPORTS: 5000, OWN: -5000})
    lease = take(store, TWO, 0)
    ((_, counters),) = tell(skewed(client, {REPORTS: 5000, OWN: -5100}), counted=(TWO,)).samples
    store.client.all([sample_call([("orders", counters)])])
    push(store, IDS[FIRST], ("a", 1), queue=TWO)
    end(store, lease, claim(store, lease), queue=TWO)
    first, second = Diagnosis(store.client).shards(TWO)
    assert 60 / 165 < first.jobs_per_minute <= 60 / 100
    assert second.jobs_per_minute == 0.0


@pytest.fixture(params=[5000, -5000])
def seconds(request):
    return request.param


@pytest.fixture
def buried(client, seconds):
    """A store with a dead job in each shard; the masters are so far ahead and behind."""
    store = skewed(client, {key(FIRST): seconds, key(SECOND): -seconds})
    for index, shard in enumerate(SHARDS):
        lease = take(store, TWO, index)
        push(store, IDS[shard], ("a", 1), queue=TWO)
        end(store, lease, claim(store, lease), Disposition.BURY, error=b"boom", queue=TWO)
    return store


@pytest.mark.parametrize(
    "act, left",
    [
        (lambda actions: actions.requeue(TWO, DEAD), 2),
        (lambda actions: actions.delete_dead(TWO, DEAD), 0),
        (lambda actions: actions.delete_dead(TWO, IDS.values()), 0),
    ],
    ids=["requeue_all", "delete_dead_all", "delete_dead"],
)
def test_an_action_on_dead_jobs_takes_those_of_all_masters(buried, act, left):
    assert act(Actions(buried.client)) == 2
    stats = Queries(buried.client).stats(TWO)
    assert (stats.morgue_length, stats.length) == (0, left)


def test_a_job_that_dies_after_the_beginning_stays_dead(client, buried, seconds):
    """By the clock of its own master, though another one is ahead."""
    later = skewed(client, {key(SECOND): 100 - seconds})
    lease = take(later, TWO, 1)
    Actions(later.client).requeue(TWO, [IDS[SECOND]])
    end(later, lease, claim(later, lease), Disposition.BURY, error=b"boom", queue=TWO)
    assert Actions(buried.client).requeue(TWO, DEAD) == 1
    assert [job.id for job in Queries(buried.client).morgue(TWO).items] == [IDS[SECOND]]


def test_failures_are_those_of_all_masters(buried):
    pages = failed_jobs(ShardReads(buried.client, TWO), dead=True)
    assert {job.id for page in pages for job in page} == set(IDS.values())


def test_a_shard_whose_clock_is_unknown_is_left_out_and_named(buried, monkeypatch):
    """Its master came back after the beginning: which of its jobs were dead by then is not known."""
    clocks = ShardReads.clocks
    monkeypatch.setattr(ShardReads, "clocks", lambda reads: {FIRST: clocks(reads)[FIRST]})
    with pytest.raises(ShardsUnreachable) as away:
        Actions(buried.client).requeue(TWO, DEAD)
    assert (away.value.count, [*away.value.shards]) == (1, [SECOND])
    assert [job.id for job in Queries(buried.client).morgue(TWO).items] == [IDS[SECOND]]
