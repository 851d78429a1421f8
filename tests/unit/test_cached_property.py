"""Values that the objects of the package keep. No Redis."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from celery_lowkiq.rules.basics import cached_property


class Shelf:
    def __init__(self):
        self.made = []
        self.together = threading.Barrier(1)

    @cached_property
    def book(self):
        """What stands there."""
        self.made.append(object())
        mine = self.made[-1]
        self.together.wait(30)
        return mine


def test_a_value_is_made_once_for_each_object():
    first, second = Shelf(), Shelf()
    assert first.book is first.book
    assert len(first.made) == 1
    assert second.book is not first.book
    assert Shelf.book.__doc__ == "What stands there."


def test_a_value_is_replaced_and_forgotten_as_any_attribute():
    shelf = Shelf()
    shelf.book = "another"
    assert shelf.book == "another"
    del shelf.book
    assert shelf.book is shelf.made[0]


def test_threads_that_ask_at_the_same_time_get_the_same_value():
    shelf = Shelf()
    shelf.together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: shelf.book, range(2))
    assert len(shelf.made) == 2
    assert first is second is shelf.book
