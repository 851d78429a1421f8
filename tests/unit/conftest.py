"""Nodes that end with their test."""

from __future__ import annotations

import pytest

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
