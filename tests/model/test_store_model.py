"""Hypothesis drives the real scripts and the plain model side by side."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from celery_lowkiq.embedded import EmbeddedServer
from tests.conftest import Rounds
from tests.model.machine import StoreMachine


@pytest.mark.random
def test_the_store_follows_the_model(redis_server: EmbeddedServer, rounds: Rounds) -> None:
    machine = type("Machine", (StoreMachine,), {"server": redis_server})
    for count in rounds(150):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=50))


@pytest.mark.random
def test_the_store_follows_the_model_on_redis_62(redis_62_server: EmbeddedServer, rounds: Rounds) -> None:
    machine = type("Machine62", (StoreMachine,), {"server": redis_62_server})
    for count in rounds(30):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=50))


def test_no_wall_clock_limit_cuts_an_example_off(request) -> None:
    """T1: what a busy machine takes longer for is no failure that Hypothesis has to explain."""
    assert request.node.get_closest_marker("timeout").args == (0,)
