"""Calls from threads and from asyncio over TLS, with certificates of both sides and a password."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from kombu.exceptions import OperationalError

from celery_lowkiq.embedded import EmbeddedServer
from tests.features.from_asyncio import SILENCE, add_sync, make_app, stored, ticking
from tests.tls import Authority, tls_in_front

PASSWORD = "s%2Fecret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def client(authority):
    return authority.identity("client")


@pytest.fixture(scope="module")
def locked(authority):
    """An identity whose key has a password."""
    return authority.identity("locked", password="of-the-key")


@pytest.fixture(scope="module")
def port(authority):
    """Of a Redis behind TLS, which asks for a client's certificate and a password."""
    with (
        EmbeddedServer(config={"requirepass": "s/ecret"}) as server,
        tls_in_front(server.socket_path, authority) as port,
    ):
        yield port


@pytest.fixture
def url(port, authority, client):
    words = f"ssl_cert_reqs=required&ssl_ca_certs={authority.certificate}"
    own = f"ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
    return f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?{words}&{own}"


def in_settings(port, authority, identity, **more):
    """The same by Celery's setting, and by our own."""
    tls = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_ca_certs": str(authority.certificate),
        "ssl_certfile": str(identity.certificate),
        "ssl_keyfile": str(identity.key),
    }
    url = f"rediss://:{PASSWORD}@localhost:{port}/0"
    yield make_app(url, redis_backend_use_ssl=tls, lowkiq_redis_options=more)
    yield make_app(f"{url}?ssl_cert_reqs=required", lowkiq_redis_options={**tls, **more})


def calls_of_both_kinds(task, first):
    """The ids that were stored, and how long the loop stood still at most (s)."""
    ids = [f"{first}-{n}" for n in range(4)]
    task.delay(ids[0], 1)

    async def main():
        await task.adelay(ids[1], 1)
        await task.aapply_async((ids[2], 1), countdown=60)
        await task.aperform_async([{"id": ids[3], "payload": 1}], results=True)
        return await asyncio.gather(*(task.adelay(ids[1], n) for n in range(20)))

    results, gap = asyncio.run(ticking(main()))
    assert isinstance(results[0], list)
    return [job_id for job_id in ids if job_id in stored(task)], ids, gap


def test_by_url(url):
    found, ids, gap = calls_of_both_kinds(add_sync(make_app(url)), "url")
    assert found == ids
    assert gap < SILENCE


def test_by_settings(port, authority, client):
    for number, app in enumerate(in_settings(port, authority, client)):
        found, ids, _ = calls_of_both_kinds(add_sync(app), f"settings-{number}")
        assert found == ids


def test_a_key_that_has_a_password(port, authority, locked):
    for number, app in enumerate(in_settings(port, authority, locked, ssl_password="of-the-key")):
        found, ids, _ = calls_of_both_kinds(add_sync(app), f"locked-{number}")
        assert found == ids


def refusals(url):
    """The errors of a call from a thread and of one from asyncio."""
    task = add_sync(make_app(url, task_publish_retry=False))
    for call in (lambda: task.delay("1"), lambda: asyncio.run(task.adelay("1"))):
        with pytest.raises(OperationalError) as caught:
            call()
        yield str(caught.value)


def test_no_certificate(port, authority):
    url = (
        f"rediss://:{PASSWORD}@127.0.0.1:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={authority.certificate}"
    )
    assert all("Redis is not available" in text for text in refusals(url))


def test_a_server_of_another_authority(url, authority, tmp_path):
    other = Authority(tmp_path, "other")
    texts = list(refusals(url.replace(str(authority.certificate), str(other.certificate))))
    assert all("CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text for text in texts)


def test_a_wrong_password(url):
    texts = list(refusals(url.replace(PASSWORD, "wrong")))
    assert all("WRONGPASS" in text for text in texts)
    assert not any("wrong" in text for text in texts)
