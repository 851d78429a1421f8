"""-Q and -X choose among ordered queues: by name, by a pattern, and by the word for all of them."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu import Queue

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
