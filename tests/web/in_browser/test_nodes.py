"""The page of nodes through the life of one: nobody, at work, quiet, stopping, dead."""

from __future__ import annotations

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from tests.waiting import eventually
from tests.web import showcase
from tests.web.in_browser.acting import leave, reads, text, violations
from tests.web.serving import served
from tests.worker.nodes import worker

pytestmark = pytest.mark.browser


@pytest.fixture
def empty_shop():
    """Where nobody works yet."""
    with EmbeddedServer() as server:
        app = showcase.make_app(server.url)
        yield app, server.url
        app.close()


@pytest.fixture
def start(empty_shop, tmp_path):
    """Starts its only worker."""
    app, url = empty_shop
    started = []

    def start_worker():
        options = {"module": "tests.web.showcase", "lanes": 2, "SHOWCASE_BROKER": url}
        started.append(worker(app, tmp_path / "worker.log", "-n", "life@shop", **options))
        return started[0]

    yield start_worker
    for node in started:
        node.teardown()


def test_a_node_is_seen_through_its_life(empty_shop, start, browser, contented):
    app, _ = empty_shop
    with served(app) as url:

        def shows(words):
            """Without loading the page again."""
            eventually(lambda: words in text(browser), 60)
            assert violations(browser) == []

        browser.get(f"{url}/nodes")
        shows("No worker has reported within the last hour")
        node = start()
        shows("1 alive · 2 lanes · 0 busy")
        app.tasks["sync_order"].delay(showcase.SLOW, {"status": "packed"})
        shows("1 busy")
        reads(browser, showcase.SLOW, "table.lanes")
        app.control.broadcast("lowkiq_quiet", destination=["life@shop"])
        shows("quiet")
        node.kill("SIGTERM")
        shows("stopping")
        node.kill("SIGKILL")
        node.exit_status()
        shows("last heard of")
        reads(browser, "silent", "#nodes")
        reads(browser, "0 alive", "#sub")
        leave(browser)
