"""A scan whose key moves to another server begins again, because that one does not know the cursor."""

from __future__ import annotations

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call, Layout
from celery_lowkiq.rules.resharding import Migration, Phase
from celery_lowkiq.store.claims import scan
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.dump_load import dump_entries
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.records import dump_cursor
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.resharding import StraySearch
from tests.bound import Pausing, Queries
from tests.store.helpers import ONE, SHARD

IDS = {f"id-{number}" for number in range(3000)}


@pytest.fixture
def server():
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def store(server):
    client = connect({"path": server.socket_path}, pool_size=2, pool_timeout=5)
    store = RedisStore(client)
    store.push(ONE, [Call(job_id, b"x", 1, perform_in=1.0) for job_id in IDS])
    yield store
    store.close()


def restart(server):
    """As a failover: the process has the same data, and other hash tables."""
    server.kill()
    server.restart()


def test_a_listing_by_id_misses_nothing(server, store):
    queries, found, after = Queries(store.client), set(), None
    for number in range(1000):
        page = queries.jobs(ONE, Listing(limit=100, after=after))
        found |= {job.id for job in page.items}
        after = page.next
        if after is None:
            break
        if number in (3, 9):
            restart(server)
    assert found == IDS


def test_a_dump_misses_nothing(server, store):
    found = []
    for entry in dump_entries(store, ONE):
        found.append(entry.id)
        if len(found) in (500, 1500):
            restart(server)
    assert set(found) == IDS
    assert len(found) > len(IDS)


def test_the_same_server_repeats_nothing(store):
    found = [member for page in scan(store.client, shard_keys(SHARD)["due"], 100) for member, _ in page]
    assert sorted(found) == sorted(job_id.encode() for job_id in IDS)


@pytest.mark.parametrize("rest", ["7.no-name", "7.a b", "7", "x.1", f"{2**64}.a", "7.a\n"])
def test_cursors_that_no_listing_returned(store, rest):
    with pytest.raises(InvalidCall, match="after="):
        Queries(store.client).jobs(ONE, Listing(after=dump_cursor(0, rest.encode())))


def test_what_a_migration_must_move_is_found(server, store):
    Pausing(store.client).switch_ids(ONE, IDS, paused=True)
    migration, search = Migration(1, Phase.MOVE, Layout(2, 1)), StraySearch()
    steps = 0
    while not search.is_done(0):
        if not search.go_on(store.client, ONE.name, migration, [0]):
            break
        steps += 1
        if steps == 3:
            restart(server)
    assert set(search.strays[0]) == {job_id for job_id in IDS if migration.leaves(0, job_id)}


def test_a_repair_goes_over_a_key_again_that_has_moved(store, monkeypatch):
    repairs, names = Repairs(store.client), iter([b"a", b"b", b"b"])
    monkeypatch.setattr(repairs, "_server", lambda _: next(names))
    replies = list(repairs._steps("largest_numbers", shard_keys(SHARD), part="jobs"))
    once = list(Repairs(store.client)._steps("largest_numbers", shard_keys(SHARD), part="jobs"))
    assert len(replies) == 2 * len(once) > 2
