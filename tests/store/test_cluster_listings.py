"""Listings of a queue, and actions on what they list, while one master of a cluster is unreachable."""

from __future__ import annotations

import contextlib

import pytest

from celery_lowkiq.rules.errors import ShardsUnreachable, StoreUnavailable
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec
from celery_lowkiq.rules.text import by_master
from celery_lowkiq.store import registry
from celery_lowkiq.store.actions import DEAD, FAILED
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.connect import connect_cluster
from celery_lowkiq.store.counts import count_failures, failed_jobs
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.listings import Listing, ShardReads
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Pausing, Queries
from tests.clusters import running_cluster
from tests.store.helpers import claim, end, take
from tests.waiting import eventually

QUEUE = QueueSpec("orders", shards=12, batch_size=10)
SHARDS = QUEUE.shard_refs()
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as started:
        yield started


@pytest.fixture
def store(cluster):
    cluster.flush()
    options = {"cluster": cluster.addresses, "socket_timeout": 0.5}
    store = RedisStore(connect_cluster(options, pool_size=4, pool_timeout=5))
    yield store
    store.close()


class Filled:
    """A queue with jobs in each state and shard, and the master that is to go away."""

    def __init__(self, cluster, store, of_queue=False):
        self.cluster, self.store = cluster, store
        own = cluster.owner(slot_of(queue_key("orders")))
        self.number = own if of_queue else (own + 1) % 3
        self.master = "{}:{}".format(*cluster.addresses[self.number])
        homes = {shard: cluster.owner(slot_of(shard_keys(shard)["meta"])) for shard in SHARDS}
        self.lost = [shard for shard in SHARDS if homes[shard] == self.number]
        self.away = by_master(dict.fromkeys(self.lost, self.master))
        self.by_state = {state: self._ids(state) for state in ("dead", "failing", "running", "waiting")}
        for state, ids in self.by_state.items():
            store.push(QUEUE, [Call(job_id, b"x", None) for job_id in ids])
            if state != "waiting":
                self._bring(state)
        Pausing(store.client).switch_ids(QUEUE, self.by_state["waiting"], paused=True)
        assert {*SHARDS} > {*self.lost} > set()

    def _ids(self, state):
        """Two of each shard."""
        found = {}
        for number in range(500):
            job_id = f"{state}-{number}"
            of_shard = found.setdefault(QUEUE.shard_of(job_id), [])
            if len(of_shard) < 2:
                of_shard.append(job_id)
        return [job_id for ids in found.values() for job_id in ids]

    def _bring(self, state):
        dispositions = {"dead": Disposition.BURY, "failing": Disposition.RETRY}
        for shard in SHARDS:
            lease = take(self.store, QUEUE, shard.index)
            claimed = claim(self.store, lease)
            if state in dispositions:
                end(self.store, lease, claimed, dispositions[state], queue=QUEUE, delay=1e6, error=b"x")
                self.store.release(lease)

    def here(self, state):
        return {job_id for job_id in self.by_state[state] if QUEUE.shard_of(job_id) not in self.lost}

    @contextlib.contextmanager
    def away_for_now(self):
        self.cluster.freeze(self.number)
        try:
            yield
        finally:
            self.cluster.thaw(self.number)
            state = [("GET", shard_keys(shard)["meta"] + "x") for shard in SHARDS]
            eventually(lambda: self.answers(state))

    def answers(self, commands):
        with contextlib.suppress(StoreUnavailable):
            return [self.store.client.commands(commands)]


def ids_of(page):
    return {one.id for one in page.items}


@pytest.mark.parametrize("of_queue", [False, True], ids=["of shards", "of the queue"])
def test_listings_are_of_what_answers_and_name_what_is_missing(cluster, store, of_queue):
    filled = Filled(cluster, store, of_queue)
    queries = Queries(store.client)
    with filled.away_for_now():
        (stored,) = registry.as_stored(store.client, [QUEUE])
        assert stored == QUEUE
        waiting = filled.here("waiting") | filled.here("failing")
        for listing, ids in (
            (Listing(), waiting),
            (Listing(prefix="waiting"), filled.here("waiting")),
            (Listing(by="perform_in"), waiting),
            (Listing(by="perform_in", pause="paused"), filled.here("waiting")),
            (Listing(by="perform_in", pause="free"), filled.here("failing")),
            (Listing(by="perform_in", prefix="waiting", reverse=True), filled.here("waiting")),
            (Listing(by="retry_count"), filled.here("failing")),
            (Listing(by="retry_count", since=1.0), filled.here("failing")),
            (Listing(by="retry_count", pause="free"), filled.here("failing")),
        ):
            page = queries.jobs(QUEUE, listing)
            assert (ids_of(page), page.unreachable, page.next) == (ids, filled.away, None), listing
        for listing in (Listing(), Listing(by="updated_at"), Listing(by="updated_at", prefix="dead")):
            page = queries.morgue(QUEUE, listing)
            assert (ids_of(page), page.unreachable) == (filled.here("dead"), filled.away)
        for page, state in (
            (queries.processing(QUEUE), "running"),
            (queries.paused_ids(QUEUE), "waiting"),
        ):
            assert (ids_of(page), page.unreachable) == (filled.here(state), filled.away)
        assert queries.held_ids(QUEUE).unreachable == filled.away
        paused = queries.paused(QUEUE)
        assert (paused.queue, paused.ids, paused.unreachable) == (
            None,
            len(filled.here("waiting")),
            filled.away,
        )
        for dead, state in ((True, "dead"), (False, "failing")):
            reads = ShardReads(store.client, QUEUE)
            found = {job.id for jobs in failed_jobs(reads, dead=dead) for job in jobs}
            assert (found, reads.unreachable) == (filled.here(state), filled.away)
            assert count_failures(reads, dead=dead) == len(found)
        assert (queries.failure_groups(QUEUE) is None) == of_queue
        assert queries.about_failure(QUEUE, "0123456789abcdef") is None
    page = queries.jobs(QUEUE, Listing(by="perform_in"))
    assert ids_of(page) == {*filled.by_state["waiting"], *filled.by_state["failing"]}
    assert page.unreachable == {}


@pytest.mark.parametrize("by", ["id", "perform_in", "filtered"])
@pytest.mark.parametrize("since", [0, 1, 2])
def test_a_page_after_an_outage_names_what_a_page_before_lacked(cluster, store, by, since):
    filled = Filled(cluster, store)
    listing = {"by": "perform_in", "prefix": "waiting"} if by == "filtered" else {"by": by, "prefix": "wait"}
    number, after, found, named = 0, None, set(), {}
    with contextlib.ExitStack() as outage:
        while after is not None or not number:
            if number == since:
                outage.enter_context(filled.away_for_now())
            page = Queries(store.client).jobs(QUEUE, Listing(limit=5, after=after, **listing))
            assert named.items() <= page.unreachable.items()
            named, after, number = page.unreachable, page.next, number + 1
            found |= ids_of(page)
            if number > since and named:
                outage.close()
    missing = {*filled.by_state["waiting"]} - found
    assert named in ({}, filled.away)
    assert {QUEUE.shard_of(job_id) for job_id in missing} <= {*(filled.lost if named else ())}
    assert named or since or by == "id"


def test_a_queue_whose_masters_are_all_away_is_an_outage(cluster, store):
    filled = Filled(cluster, store)
    alone = next(QueueSpec(f"q{n}", shards=1) for n in range(99) if is_on(cluster, f"q{n}", filled.number))
    with filled.away_for_now(), pytest.raises(StoreUnavailable):
        Queries(store.client).jobs(alone)


def is_on(cluster, name, number):
    (shard,) = QueueSpec(name, shards=1).shard_refs()
    return cluster.owner(slot_of(shard_keys(shard)["meta"])) == number


def test_actions_are_done_where_masters_answer_and_name_what_is_left_out(cluster, store):
    filled = Filled(cluster, store)
    actions, pausing = Actions(store.client), Pausing(store.client)
    left, progress = filled.by_state, []

    def done(act, *ids, **options):
        with pytest.raises(ShardsUnreachable) as error:
            act(QUEUE, *ids, **options)
        assert error.value.shards == dict.fromkeys(filled.lost, filled.master)
        assert all(name in str(error.value) for name in filled.away.values())
        return error.value.count

    with filled.away_for_now():
        assert done(pausing.resume_all_ids) == len(filled.here("waiting"))
        assert done(actions.run_now, left["waiting"] + left["failing"]) == len(filled.here("failing"))
        assert done(actions.run_now_all) >= 0
        assert done(pausing.switch_ids, left["waiting"], paused=True) == len(filled.here("waiting"))
        assert done(pausing.switch_ids, left["waiting"], paused=False) == len(filled.here("waiting"))
        assert done(actions.delete, left["waiting"], progress=progress.append) == len(filled.here("waiting"))
        assert progress[-1] == len(filled.here("waiting"))
        assert done(actions.bury, FAILED, b"", only_failed=True) == len(filled.here("failing"))
        assert done(actions.requeue, left["dead"][::2]) == len(filled.here("dead")) / 2
        assert done(actions.requeue, DEAD) > 0
        assert done(pausing.switch_queue, paused=True) == len(SHARDS) - len(filled.lost)
    lost = len(filled.lost) * 2
    assert pausing.switch_queue(QUEUE, paused=True)
    assert actions.delete(QUEUE, left["waiting"]) == lost
    assert actions.bury(QUEUE, FAILED, b"", only_failed=True) == lost
    assert actions.requeue(QUEUE, DEAD) == 2 * lost
    assert Queries(store.client).morgue(QUEUE).items == ()
