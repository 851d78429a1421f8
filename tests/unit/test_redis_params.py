"""Parameters of connections: URLs, and options of TLS and Sentinel, where Celery's users write them."""

from __future__ import annotations

import ssl

import pytest
from celery import Celery
from redis import SSLConnection

from celery_lowkiq.integration import app as context
from celery_lowkiq.integration.redis_params import source_of
from celery_lowkiq.integration.settings import read_settings
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.store.connect import connect


def app(**settings):
    made = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
    made.conf.update(settings)
    return made


def parameters(url, **settings):
    made = app(lowkiq_url=url, **settings)
    return context.parameters(made, read_settings(made))


@pytest.mark.parametrize("url", ["amqp://u:hunter2@localhost//", "memory://", "sqs://"])
def test_another_broker_needs_lowkiq_url(url):
    made = Celery("unit", broker=url, set_as_current=False)
    with pytest.raises(ConfigurationError, match="set lowkiq_url") as raised:
        context.parameters(made, read_settings(made))
    assert "hunter2" not in str(raised.value)


def test_urls():
    tcp = parameters("redis://me:secret@example:7000/3")
    assert (tcp["host"], tcp["port"], tcp["db"]) == ("example", 7000, 3)
    assert (tcp["username"], tcp["password"]) == ("me", "secret")
    assert parameters("redis+socket:///tmp/x.sock?virtual_host=2")["path"] == "/tmp/x.sock"
    tls = parameters("rediss://example?ssl_cert_reqs=none")
    assert "SSL" in tls["connection_class"].__name__
    sentinel = parameters(
        "sentinel://a:1;sentinel://b:2", result_backend_transport_options={"master_name": "mymaster"}
    )
    assert (sentinel["sentinels"], sentinel["master_name"]) == ([("a", 1), ("b", 2)], "mymaster")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host:notaport/0",
        "redis://:hunter2/3@host:1/0",
        "redis://:hunter2@a:1/0;redis://:hunter2@b:1/0",
        "redis://:hunter2@[::1",
        "rediss://:hunter2@host",
        "redis+socket://",
    ],
)
def test_a_bad_url_is_refused_and_not_shown(url):
    with pytest.raises(ConfigurationError, match="lowkiq_url is invalid: expected") as raised:
        parameters(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ["worker:hunter2@redis.internal:6379/0", "redis:/:hunter2@host"])
def test_an_address_without_a_scheme_is_not_shown(url):
    made = app(lowkiq_url=url)
    with pytest.raises(ConfigurationError) as raised:
        context.parameters(made, read_settings(made))
    assert "hunter2" not in str(raised.value)


def test_of_a_broker_with_several_urls_the_first_is_the_store():
    for url in ("redis://a;redis://b", ["redis://a", "redis://b"]):
        made = Celery("unit", broker=url, set_as_current=False)
        assert context.parameters(made, read_settings(made))["host"] == "a"


@pytest.mark.parametrize(
    "url, same",
    [
        ("valkey://me:secret@example:7000/3", "redis://me:secret@example:7000/3"),
        ("valkeys://example?ssl_cert_reqs=none", "rediss://example?ssl_cert_reqs=none"),
        ("unix:///tmp/x.sock", "redis+socket:///tmp/x.sock"),
        ("unix://me:secret@/tmp/x.sock?db=2", "redis+socket://me:secret@/tmp/x.sock?virtual_host=2"),
        ("sentinel://a;b:2?master_name=m", "sentinel://a:26379;sentinel://b:2?master_name=m"),
    ],
)
def test_p8_urls_as_others_write_them(url, same):
    """P8: valkey://, valkeys:// and unix:// were refused."""
    found, expected = parameters(url), parameters(same)
    assert {**found, "driver_info": 0} == {**expected, "driver_info": 0}


@pytest.mark.parametrize(
    "url, seeds",
    [
        ("redis+cluster://me:sec%40ret@a:7000,b:7001", [("a", 7000), ("b", 7001)]),
        ("valkey+cluster://me:sec%40ret@a,b:1/0", [("a", 6379), ("b", 1)]),
        ("redis+cluster://me:sec%40ret@[::1]:7,b/", [("::1", 7), ("b", 6379)]),
        ("rediss+cluster://me:sec%40ret@a,b?ssl_cert_reqs=none", [("a", 6379), ("b", 6379)]),
        ("valkeys+cluster://me:sec%40ret@a/0?ssl_cert_reqs=none", [("a", 6379)]),
    ],
)
def test_urls_of_clusters(url, seeds):
    found = parameters(url)
    assert found["cluster"] == seeds
    assert (found["username"], found["password"]) == ("me", "sec@ret")
    assert not found.keys() & {"host", "port", "db"}
    is_tls = url.startswith(("rediss+", "valkeys+"))
    assert ("SSL" in found.get("connection_class", dict).__name__) is is_tls


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis+cluster://:hunter2@a:1/2", "db=2: expected none, or 0. A cluster has only database 0"),
        ("redis+cluster://:hunter2@a:1,b:x", "lowkiq_url is invalid: expected"),
        ("redis+cluster://me:hunter2@a:1,me:hunter2@b:1", "lowkiq_url is invalid: expected"),
        ("redis+cluster://a:1,me:hunter2@b:1", "expected user and password once, before the first host"),
        ("redis+cluster://a,:hunter2@b", "expected user and password once, before the first host"),
        ("redis+cluster://:hunter2@", "lowkiq_url is invalid: expected"),
        ("redis+cluster://:hunter2@a,,b", "lowkiq_url is invalid: expected"),
        ("rediss+cluster://:hunter2@a,b", "is invalid: expected ssl_cert_reqs=required"),
    ],
)
def test_a_bad_url_of_a_cluster_is_refused_and_not_shown(url, words):
    with pytest.raises(ConfigurationError, match=words) as raised:
        parameters(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "rediss+cluster", "valkeys+cluster"])
@pytest.mark.parametrize("options", [{"ssl_ca_certs": "/ca.pem"}, {"ssl": True}, {"ssl_cert_reqs": "none"}])
def test_tls_of_a_url_with_its_options_elsewhere(scheme, options):
    """Celery wants them in the URL, or in a setting of its own."""
    found = parameters(f"{scheme}://:secret@a:1", lowkiq_redis_options=options)
    assert found["ssl"] is True
    assert found.items() >= options.items()


def test_tls_without_options_names_what_is_missing():
    for url in ("rediss://:hunter2@a", "rediss+cluster://:hunter2@a", "rediss://a?ssl_ca_certs=/x"):
        for options in ({}, {"ssl": False, "ssl_ca_certs": "/x"}):
            with pytest.raises(ConfigurationError, match="lowkiq_redis_options, as") as raised:
                parameters(url, lowkiq_redis_options=options)
            assert "hunter2" not in str(raised.value)


def test_the_forms_of_a_url_include_clusters_with_tls():
    with pytest.raises(ConfigurationError, match=r"or rediss.cluster://.*ssl_cert_reqs=required, with"):
        parameters("redis+cluster://a,,b")


def test_a_cluster_is_no_broker():
    made = Celery("unit", broker="redis+cluster://:hunter2@a,b", set_as_current=False)
    with pytest.raises(ConfigurationError, match="Set lowkiq_url to this URL, and broker_url to") as raised:
        context.parameters(made, read_settings(made))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "scheme, instead", [("valkey", "redis"), ("valkeys", "rediss"), ("unix", r"redis.socket")]
)
def test_p8_a_broker_that_celery_does_not_know_is_refused(scheme, instead):
    """P8: kombu has no transport of that name, and ends a worker with a KeyError."""
    made = Celery("unit", broker=f"{scheme}://:hunter2@h/0", set_as_current=False)
    with pytest.raises(
        ConfigurationError, match=f"broker_url is a '{scheme}' URL.*write the equivalent {instead}://"
    ) as raised:
        context.parameters(made, read_settings(made))
    assert "hunter2" not in str(raised.value)


TLS = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca"}
NAMED = {"master_name": "brokers", "sentinel_kwargs": {"password": "s"}}
OWN = {"master_name": "own"}


class TestSentinels:
    """P8: the name of the master comes from wherever Celery's users write it."""

    def found(self, url="sentinel://a:1", broker="sentinel://b:2", **settings):
        made = Celery("unit", broker=broker, set_as_current=False)
        made.conf.update(settings, lowkiq_url=url)
        return context.parameters(made, read_settings(made))

    def test_no_name_is_an_error_that_names_all_places(self):
        for broker in ("sentinel://b:2", "redis://b"):
            with pytest.raises(ConfigurationError, match="lowkiq_url is a sentinel:// URL") as raised:
                self.found("sentinel://:hunter2@a:1", broker)
            assert "hunter2" not in str(raised.value)
            for place in ("?master_name=", "lowkiq_redis_options", "result_backend_transport_options"):
                assert place in str(raised.value)
            assert "the broker_transport_options of a sentinel:// broker" in str(raised.value)

    def test_the_brokers_when_the_broker_is_a_sentinel(self):
        found = self.found(broker_transport_options=NAMED)
        assert (found["master_name"], found["sentinel_kwargs"]) == ("brokers", {"password": "s"})
        with pytest.raises(ConfigurationError, match="master"):
            self.found(broker="redis://b", broker_transport_options=NAMED)

    def test_what_is_nearer_comes_first(self):
        both = {"broker_transport_options": NAMED, "result_backend_transport_options": OWN}
        options = {"lowkiq_redis_options": {"master_name": "mine"}}
        url = "sentinel://a:1;sentinel://c:3/2?master_name=urls"
        for found, name in (
            (self.found(**both), "own"),
            (self.found(url, **both), "urls"),
            (self.found(url, **both, **options), "mine"),
        ):
            # The password of the broker's sentinels is nothing for others.
            assert (found["master_name"], found["sentinel_kwargs"]) == (name, None)

    def test_of_a_broker_all_its_options_are_its_own(self):
        both = {"broker_transport_options": NAMED, "result_backend_transport_options": OWN}
        for broker in ("sentinel://a:1;sentinel://b:2", ["sentinel://a:1", "sentinel://b:2"]):
            found = self.found(None, broker, **both)
            assert (found["master_name"], found["sentinel_kwargs"]) == ("brokers", {"password": "s"})
            assert found["sentinels"] == [("a", 1), ("b", 2)]

    @pytest.mark.parametrize(
        "settings",
        [{"lowkiq_redis_options": {"ssl": True, "ssl_ca_certs": "/ca"}}, {"redis_backend_use_ssl": TLS}],
    )
    def test_masters_behind_tls(self, settings):
        """The class that Celery names was dropped, and its arguments were refused."""
        found = {"result_backend_transport_options": NAMED, **settings}
        pool = connect(self.found(**found), pool_size=1, pool_timeout=1).connection_pool
        assert issubclass(pool.connection_class, SSLConnection)
        assert pool.connection_kwargs["ssl_ca_certs"] == "/ca"
        (sentinel,) = pool.sentinel_manager.sentinels
        assert not issubclass(sentinel.connection_pool.connection_class, SSLConnection)

    def test_sentinels_behind_tls_that_answer_in_time(self):
        options = {"master_name": "m", "sentinel_kwargs": {"ssl": True, "ssl_ca_certs": "/ca"}}
        found = self.found(lowkiq_redis_options={**options, "socket_timeout": 2})
        (sentinel,) = connect(found, pool_size=1, pool_timeout=1).connection_pool.sentinel_manager.sentinels
        pool = sentinel.connection_pool
        assert issubclass(pool.connection_class, SSLConnection)
        assert pool.connection_kwargs["socket_timeout"] == 2
        assert pool.connection_kwargs["socket_connect_timeout"] == 5.0

    def test_tls_of_the_broker_comes_with_the_name(self):
        """A master was found by the broker's name, and asked without TLS."""
        tls = {"broker_use_ssl": TLS, "broker_transport_options": NAMED}
        assert self.pool(**tls).connection_kwargs["ssl_ca_certs"] == "/ca"
        for other in (
            {"result_backend_transport_options": OWN},
            {"lowkiq_redis_options": OWN},
            {"lowkiq_redis_options": {"ssl": False}},
        ):
            assert not issubclass(self.pool(**tls, **other).connection_class, SSLConnection)
        own = {"redis_backend_use_ssl": {**TLS, "ssl_ca_certs": "/own"}}
        assert self.pool(**tls, **own).connection_kwargs["ssl_ca_certs"] == "/own"

    @pytest.mark.parametrize(
        "settings",
        [
            {"broker_transport_options": {**NAMED, "min_other_sentinels": 2}},
            {"result_backend_transport_options": {**OWN, "min_other_sentinels": 2}},
            {"lowkiq_redis_options": {**OWN, "min_other_sentinels": 2}},
        ],
    )
    def test_sentinels_that_must_know_others(self, settings):
        """The option was dropped: a sentinel that is cut off from the others named its old master."""
        found = self.found(**settings)
        pool = connect(found, pool_size=1, pool_timeout=1).connection_pool
        assert pool.sentinel_manager.min_other_sentinels == 2
        assert self.pool(lowkiq_redis_options=OWN).sentinel_manager.min_other_sentinels == 0

    def pool(self, **settings):
        return connect(self.found(**settings), pool_size=1, pool_timeout=1).connection_pool

    def test_each_is_a_sentinel(self):
        with pytest.raises(ConfigurationError, match="lowkiq_url is invalid: expected") as raised:
            self.found("sentinel://a:1;redis://:hunter2@b:2?master_name=m")
        assert "hunter2" not in str(raised.value)


def pool_of(**settings):
    options = {"broker_use_ssl": TLS, "broker_transport_options": {"master_name": "m"}}
    return context.context_of(app(**options, **settings)).store.client.servers.redis.connection_pool


@pytest.mark.parametrize("url", ["rediss://h/0", "redis://h/0", "sentinel://h:1"])
def test_the_tls_of_the_broker_is_that_of_a_store_beside_it(url):
    """Celery's users write broker_use_ssl: a broker's URL without ssl_cert_reqs was refused."""
    pool = pool_of(broker_url=url)
    assert issubclass(pool.connection_class, SSLConnection)
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca"
    other = {**TLS, "ssl_ca_certs": "/b"}
    assert pool_of(broker_url=url, redis_backend_use_ssl=other).connection_kwargs["ssl_ca_certs"] == "/b"
    elsewhere = pool_of(broker_url=url, lowkiq_url="redis://other")
    assert not issubclass(elsewhere.connection_class, SSLConnection)


@pytest.mark.parametrize("options", [{"ssl_check_hostname": False}, {"ssl": True}])
def test_options_of_tls_of_the_store_are_added_to_those_of_the_broker(options):
    """The CA and the client's certificate of broker_use_ssl were dropped for them."""
    tls = {**TLS, "ssl_certfile": "/cert", "ssl_keyfile": "/key"}
    made = app(broker_url="rediss://h/0", broker_use_ssl=tls, lowkiq_redis_options=options)
    found = context.parameters(made, read_settings(made))
    assert {name: value for name, value in found.items() if name.startswith("ssl")} == {
        "ssl": True,
        **tls,
        **options,
    }


def test_a_misspelt_redis_option_is_refused_before_anything_connects():
    shared = context.context_of(app(lowkiq_redis_options={"sokcet_timeout": 1}))
    with pytest.raises(ConfigurationError, match=r"lowkiq_redis_options.*sokcet_timeout"):
        _ = shared.store


def test_a_hanging_redis_cannot_outlast_a_lease():
    assert parameters("redis://x")["socket_timeout"] == 5.0
    assert parameters("redis://x", lowkiq_redis_options={"socket_timeout": 2})["socket_timeout"] == 2


def test_every_kind_of_url_makes_a_client():
    urls = ["redis://x", "redis+socket:///tmp/x", "rediss://x?ssl_cert_reqs=none", "sentinel://a:1"]
    for url in [*urls, "valkey://x", "unix:///tmp/x", "valkeys://x?ssl_cert_reqs=none"]:
        made = app(lowkiq_url=url, result_backend_transport_options={"master_name": "m"})
        shared = context.context_of(made)
        assert shared.store is shared.store
        shared.store.close()


STAGE = {"global_keyprefix": "stage:"}
SAME = (
    "redis://localhost:1/0",
    "redis://user:secret@localhost:1",
)
OTHERS = (
    "redis://localhost:1/1",
    "redis://other:1/0",
    "redis://localhost/0",
    "sentinel://a:1;sentinel://b:2",
)
SOCKET = "redis+socket:///run/redis.sock%s"


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        ({}, ""),
        ({"broker_transport_options": STAGE}, "stage:"),
        ({"broker_transport_options": STAGE, "lowkiq_redis_options": {"global_keyprefix": "own:"}}, "own:"),
        ({"broker_transport_options": STAGE, "lowkiq_redis_options": {"global_keyprefix": ""}}, ""),
        ({"lowkiq_redis_options": STAGE}, "stage:"),
        ({"lowkiq_redis_options": STAGE, "lowkiq_url": "redis+cluster://a:1,b:2"}, "stage:"),
        ({"result_backend_transport_options": STAGE}, ""),
        *(({"broker_transport_options": STAGE, "lowkiq_url": url}, "stage:") for url in SAME),
        *(({"broker_transport_options": STAGE, "lowkiq_url": url}, "") for url in OTHERS),
        ({"broker_transport_options": STAGE, "lowkiq_url": SAME[0], "lowkiq_redis_options": {"db": 1}}, ""),
        *(
            (
                {"broker_url": SOCKET % one, "broker_transport_options": STAGE, "lowkiq_url": SOCKET % own},
                found,
            )
            for one, own, found in [("", "?virtual_host=0", "stage:"), ("", "?virtual_host=1", "")]
        ),
    ],
)
def test_the_prefix_of_all_keys(settings, prefix):
    made = app(**settings)
    read = read_settings(made)
    assert context.key_prefix(made, read) == prefix
    if not str(read.url).startswith("sentinel"):
        assert "global_keyprefix" not in context.parameters(made, read)


@pytest.mark.parametrize("prefix", ["{stage}:", "stage}", "a b:", "a\n", "\x00", b"stage:", 5])
def test_a_prefix_that_would_move_keys_is_refused(prefix):
    made = app(broker_transport_options={"global_keyprefix": prefix})
    with pytest.raises(ConfigurationError, match=r"^global_keyprefix=.* is invalid: expected printable"):
        context.context_of(made).open_store(1)


def test_an_app_without_a_broker_is_told_what_to_set():
    app = Celery("none", set_as_current=False)
    with pytest.raises(ConfigurationError, match="neither broker_url nor lowkiq_url is set"):
        source_of(app, context.context_of(app).settings)
