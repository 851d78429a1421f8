"""Nodes that end with their test, and an app whose calls run at once."""

from __future__ import annotations

import pytest
from celery import Celery

from tests.unit.nodes import Node


@pytest.fixture
def node():
    made = []

    def make(**options):
        made.append(Node(**options))
        return made[-1]

    yield make
    for one in made:
        one.runtime.abandon()
        assert one.runtime.join(10) or one.runtime.busy()


@pytest.fixture
def app():
    app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.task_always_eager = True
    return app
