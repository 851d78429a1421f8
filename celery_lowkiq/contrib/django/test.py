"""Test cases of Django for ordered tasks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache

from django.test import SimpleTestCase

from celery_lowkiq.contrib.django.celery_app import celery_app
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.testing.store import Lowkiq, lowkiq_store


class OrderedTasksMixin(SimpleTestCase):
    """Gives each test an empty store: ``class OrderTests(OrderedTasksMixin, TestCase)``.

    It needs a Redis server on PATH, or the extra ``embedded``.
    """

    #: The fixture ``lowkiq`` of pytest.
    lowkiq: Lowkiq

    def setUp(self) -> None:
        """Empty the store, and give it to the current app."""
        super().setUp()
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.lowkiq = stack.enter_context(lowkiq_store(celery_app(), _server(os.getpid())))


@cache
def _server(_pid: int) -> EmbeddedServer:
    """The server of this process, which ends with it; ``manage.py test --parallel`` forks."""
    return EmbeddedServer().start()
