"""Tests of ``store/connect.py``."""

from __future__ import annotations

import asyncio

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from tests.sentinels import NAME, USER, USER_PASSWORD, running_sentinels
from tests.store.test_connections import made

pytestmark = pytest.mark.full

LOGIN = {"username": USER, "password": USER_PASSWORD}
OPTIONS = {"master_name": NAME, "sentinel_kwargs": LOGIN, "min_other_sentinels": 2}
WITHOUT_NAME = {name: value for name, value in OPTIONS.items() if name != "master_name"}


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory):
    with running_sentinels(tmp_path_factory.mktemp("sentinels") / "of") as found:
        yield found


@pytest.fixture(autouse=True)
def empty(sentinels):
    with sentinels.client(0) as master:
        master.flushall()


def check(task):
    task.delay("by thread", "x")
    asyncio.run(task.adelay("by asyncio", "x"))
    assert task.ordered_queue.stats().length == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_url": "sentinel://h:1", "broker_transport_options": OPTIONS},
        {"result_backend_transport_options": OPTIONS},
        {"lowkiq_redis_options": OPTIONS},
    ],
    ids=["broker", "result backend", "redis options"],
)
def test_the_name_in_options(sentinels, settings):
    with made(sentinels.url, **settings) as task:
        check(task)


@pytest.mark.parametrize("place", ["lowkiq_redis_options", "result_backend_transport_options"])
@pytest.mark.parametrize(
    "form",
    [
        "sentinel://127.0.0.1:{};sentinel://127.0.0.1:{};sentinel://127.0.0.1:{}/0?master_name={}",
        "sentinel://127.0.0.1:{};127.0.0.1:{};127.0.0.1:{}/0?master_name={}",
    ],
)
def test_the_name_in_the_url(sentinels, form, place):
    with made(form.format(*sentinels.ports, NAME), **{place: WITHOUT_NAME}) as task:
        check(task)


@pytest.mark.parametrize("joined", [True, False])
def test_a_broker_that_is_the_store(sentinels, joined):
    url = sentinels.url if joined else sentinels.url.split(";")
    with made(None, broker_url=url, broker_transport_options=OPTIONS) as task:
        check(task)


def test_a_sentinel_that_knows_too_few_others_is_not_believed(sentinels):
    refused = pytest.raises(StoreUnavailable, match="No master found")
    with made(sentinels.url, lowkiq_redis_options={**OPTIONS, "min_other_sentinels": 3}) as task, refused:
        task.delay("1", "x")


@pytest.mark.parametrize("wrong", [{"username": "unknown"}, {"password": "wrong"}])
def test_a_login_that_the_sentinels_refuse(sentinels, wrong):
    options = {**OPTIONS, "sentinel_kwargs": LOGIN | wrong}
    with made(sentinels.url, lowkiq_redis_options=options) as task, pytest.raises(StoreUnavailable) as raised:
        task.delay("1", "x")
    assert USER_PASSWORD not in str(raised.value)
