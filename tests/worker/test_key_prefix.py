"""Two installations on one database, kept apart by the prefix that kombu knows: workers, calls and pages."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.tracking import track
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("root_level")

PREFIXES = ("stage:", "prod:")


class Installation:
    """An app with a task that notes what it ran; ``name`` is its prefix."""

    def __init__(self, name: str, url: str) -> None:
        self.ran: list[tuple[str, list[str]]] = []
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.broker_transport_options = {"global_keyprefix": name}

        @ordered_task(app=self.app, name="shop.save", shards=2, max_retries=0)
        def save(payloads_by_id):
            ((order, payloads),) = payloads_by_id.items()
            self.ran.append((order, payloads))
            if order == "bad":
                raise ValueError(name)

        self.save = save._get_current_object()
        self.queue = self.save.ordered_queue
        self.inspector = Inspector(self.app)


@pytest.fixture
def installations(empty_redis):
    made = [Installation(name, empty_redis.url) for name in PREFIXES]
    yield made
    for each in made:
        each.app.close()


def serve(installation, ids):
    """A worker until these ids have run."""
    with start_worker(installation.app, pool="threads", concurrency=1, perform_ping_check=False):
        eventually(lambda: {order for order, _ in installation.ran} >= ids)
        assert len(installation.inspector.nodes()) == 1


def test_they_see_nothing_of_each_other(installations, empty_redis):
    stage, prod = installations
    for each, name in zip(installations, PREFIXES, strict=True):
        with track(name, each.app) as tracker:
            each.save.apply_async(("1", name), tracker=tracker)
        each.save.delay("bad", name)
    serve(prod, {"1", "bad"})
    assert sorted(prod.ran) == [("1", ["prod:"]), ("bad", ["prod:"])]
    assert [tracker.name for tracker in prod.inspector.trackers().items] == ["prod:"]
    assert [job.id for job in prod.queue.morgue().items] == ["bad"]
    assert (stage.ran, stage.queue.stats().length, stage.inspector.nodes()) == ([], 2, ())
    assert (stage.queue.morgue().items, stage.queue.stats().failed) == ((), 0)
    serve(stage, {"1", "bad"})
    assert sorted(stage.ran) == [("1", ["stage:"]), ("bad", ["stage:"])]
    assert len(prod.ran) == 2
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        ours = [key for key in client.scan_iter() if b"lowkiq" in key]
    assert ours
    assert all(key.startswith((b"stage:lowkiq:", b"prod:lowkiq:")) for key in ours)
