"""What a worker says it serves."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.bootstep.command_line import Service, reasons
from celery_lowkiq.integration.redis_params import shown_address

STORE = "redis://localhost:6379/0"


def test_the_banner_and_the_log_name_queues_shards_lanes_store_exclusion_and_what_is_not_served():
    """F9: the banner never said that ordered queues are served."""
    left = {"export": "-X names it", "mail": "-Q does not name it", "move": "-X names it"}
    service = Service({"bill": 4, "shop.sync_order": 24}, left, 8, "strict", STORE)
    assert service.banner() == [
        "[ordered queues]",
        "  .> bill             shards=4",
        "  .> shop.sync_order  shards=24",
        f"  lanes=8 exclusion=strict store={STORE}",
        "  .> not served: export, move (-X names it)",
        "  .> not served: mail (-Q does not name it)",
    ]
    assert service.sentence() == (
        "ordered queues are served by 8 lanes: bill (4 shards), shop.sync_order (24 shards); "
        f"exclusion: strict; store: {STORE}; not served: export, move (-X names it); "
        "not served: mail (-Q does not name it)"
    )


def test_an_app_without_ordered_queues_says_nothing_in_the_banner():
    assert Service({}).banner() == []


def test_a_thousand_queues_make_no_endless_line():
    names = [f"queue-{number}" for number in range(1000)]
    assert len(Service(dict.fromkeys(names, 5), {}, 8, "cooperative", STORE).sentence()) < 350
    assert "and 990 more (-X" in Service({}, dict.fromkeys(names, "-X names it")).sentence()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"queues": "celery,other"}, "-Q does not name it"),
        ({"exclude_queues": ["record"]}, "-X names it"),
        ({}, "cancel_consumer"),
    ],
)
def test_why_a_queue_is_not_served(options, reason):
    assert reasons(["record"], options) == {"record": reason}


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://ops:hunter2@cache:7000/3?socket_timeout=9", "redis://cache:7000/3"),
        ("redis://:hunter2@[::1]/0", "redis://[::1]:6379/0"),
        ("rediss://:hunter2@cache?ssl_cert_reqs=required", "rediss://cache:6379/0"),
        ("redis+socket://:hunter2@/run/redis.sock", "redis+socket:///run/redis.sock"),
        ("redis+cluster://:hunter2@a:1,b:2", "redis+cluster://a:1,b:2"),
        (
            "sentinel://:hunter2@a:1/2;sentinel://:hunter2@b:2?master_name=main",
            "sentinel://a:1,b:2/2?master_name=main",
        ),
    ],
)
def test_the_address_of_the_store_has_no_secret(url, shown):
    app = Celery("shown", broker="memory://", set_as_current=False)
    app.conf.lowkiq_url = url
    assert shown_address(context_of(app).redis_parameters()) == shown
