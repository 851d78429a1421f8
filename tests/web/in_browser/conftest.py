"""One server, one worker, one dashboard and one browser for all that is seen and pressed here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.queue import OrderedQueue
from tests.browsing import chromium, complaints
from tests.web import showcase
from tests.web.in_browser.acting import do, reads
from tests.web.serving import served, shop


class Gate:
    """Lets a change take its steps on Redis one by one."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._count = 0

    def after_each_step(self, progress: Callable[[int], None], count: int) -> None:
        progress(count)
        # The step of an empty shard is none that anybody sees.
        if count > self._count:
            self._count = count
            assert self._steps.acquire(timeout=60)

    def step(self, times: int = 1) -> None:
        self._steps.release(times)


@pytest.fixture(scope="package")
def server() -> Iterator[EmbeddedServer]:
    """Not the one that other tests empty."""
    with EmbeddedServer() as found:
        yield found


@pytest.fixture(scope="package")
def app(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    with shop(server, tmp_path_factory.mktemp("shop")) as found:
        yield found


@pytest.fixture(scope="package")
def site(app: Celery) -> Iterator[str]:
    with served(app) as url:
        yield url


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def contented(browser: Any) -> Iterator[None]:
    """Afterwards the browser must have had nothing to complain of but a status we ask for."""
    complaints(browser)
    yield
    assert [said for said in complaints(browser) if "status of 40" not in said] == []


@pytest.fixture
def visit(browser: Any, site: str, contented: None) -> Callable[[str], None]:
    """Opens a page."""
    return lambda path: browser.get(site + path)


@pytest.fixture
def keys(browser: Any) -> Callable[..., None]:
    """Presses keys."""
    # Here, as selenium is there where a browser is.
    from selenium.webdriver import ActionChains

    def send(*given: str) -> None:
        ActionChains(browser).send_keys(*given).perform()

    return send


@pytest.fixture
def orders(app: Celery) -> OrderedQueue:
    return app.tasks["sync_order"].ordered_queue


@pytest.fixture
def stock(app: Celery) -> OrderedQueue:
    """Without jobs that are due: one behind a slow job would end while a test looks at it."""
    queue: OrderedQueue = app.tasks["update_stock"].ordered_queue
    queue.delete([job.id for job in queue.jobs("perform_in", maximum=time.time(), limit=1000).items])
    return queue


@pytest.fixture
def idle_shop() -> Iterator[Celery]:
    """Where nobody works, so that nobody moves a queue."""
    with EmbeddedServer() as server:
        app = showcase.make_app(server.url)
        showcase.fill(app)
        yield app
        app.close()


@pytest.fixture
def gate(impatient: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Stands in the way of "Run all now"."""
    found, real, running = Gate(), OrderedQueue.run_now_all, threading.Lock()

    def run_now_all(queue: OrderedQueue, progress: Callable[[int], None]) -> int:
        with running:
            return real(queue, partial(found.after_each_step, progress))

    monkeypatch.setattr(OrderedQueue, "run_now_all", run_now_all)
    yield found
    found.step(1000)
    # Jobs of the next test would be made due by what is left of it.
    assert running.acquire(timeout=60)


@pytest.fixture
def watched(app: Celery, browser: Any, visit: Callable[[str], None], gate: Gate) -> Any:
    """The page of a change that has taken its first step of many."""
    for _ in range(60):
        app.tasks["update_stock"].apply_async((uuid4().hex, {"delta": 1}), countdown=7200)
    visit("/queue?queue=update_stock")
    do(browser, "Run all now", "Run all now: ")
    reads(browser, "running")
    return browser
