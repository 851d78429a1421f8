"""Tests of ``integration/bootstep/command_line.py``."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu import Queue

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.bootstep.command_line import (
    CANCELLED,
    EXCLUDED,
    NOT_NAMED,
    Service,
    chosen,
    deselect_from_broker,
    named,
    reasons,
)
from celery_lowkiq.integration.redis_params import shown_address

# -Q and -X choose among ordered queues: by name, by a pattern, and by the word for all of them.

NAMES = ["orders.save", "orders.ship", "mail"]


@pytest.mark.parametrize(
    ("queues", "exclude", "served", "asked_for"),
    [
        (None, None, NAMES, []),
        ("celery,mail", None, ["mail"], ["mail"]),
        ("celery,orders.*", None, ["orders.save", "orders.ship"], ["orders.save", "orders.ship"]),
        ("celery,orders.s?ve,mai[lm]", None, ["orders.save", "mail"], ["orders.save", "mail"]),
        ("celery,lowkiq", None, NAMES, NAMES),
        ("celery,lowkiq", "orders.*", ["mail"], NAMES),
        ("celery", None, [], []),
        ("celery", "lowkiq", [], []),
        (None, "lowkiq", [], []),
        (["celery", "Orders.*"], None, [], []),
    ],
)
def test_words_select_ordered_queues(queues, exclude, served, asked_for):
    options = {"queues": queues, "exclude_queues": exclude}
    assert chosen(NAMES, options) == served
    assert named(NAMES, options) == asked_for


def test_reasons_follow_patterns():
    options = {"queues": "celery,orders.*", "exclude_queues": "*.ship"}
    assert reasons(NAMES, options) == {"orders.save": CANCELLED, "orders.ship": EXCLUDED, "mail": NOT_NAMED}


@pytest.mark.parametrize(
    ("left", "warned"),
    [
        (dict.fromkeys(NAMES, NOT_NAMED), True),
        ({"mail": EXCLUDED, "orders.save": NOT_NAMED}, True),
        (dict.fromkeys(NAMES, EXCLUDED), False),
        (dict.fromkeys(NAMES, CANCELLED), False),
        ({}, False),
    ],
)
def test_a_worker_whose_q_overlooks_all_ordered_queues_says_how_to_name_them(left, warned):
    service = Service({}, left)
    assert service.is_overlooked is warned
    assert ("add -X lowkiq if other workers serve them" in service.sentence()) is warned
    assert not Service({"bill": 4}, left).is_overlooked


@pytest.mark.parametrize(
    ("queues", "declared", "consumed", "warnings"),
    [
        ("celery,mail,orders.*,lowkiq", ["celery"], {"celery"}, 0),
        ("celery,mail", ["celery", "mail"], {"celery", "mail"}, 0),
        ("celery,billing.*", ["celery"], {"celery"}, 1),
        ("celery,other", ["celery"], {"celery", "other"}, 0),
        ("a[1]", ["a[1]"], {"a[1]"}, 0),
    ],
)
def test_the_broker_needs_no_queue_for_a_pattern(caplog, queues, declared, consumed, warnings):
    app = Celery("q", set_as_current=False)
    app.conf.task_queues = [Queue(name) for name in declared]
    app.amqp.queues.select(queues.split(","))
    deselect_from_broker(app, NAMES, {"queues": queues})
    assert set(app.amqp.queues.consume_from) == consumed
    assert len(caplog.records) == warnings


# What a worker says it serves.

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
