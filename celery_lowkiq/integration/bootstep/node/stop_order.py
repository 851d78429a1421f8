"""The order to stop, which the worker gives the node process at once, also in a signal handler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery.platforms import EX_OK


class StopOrder:
    """The handler of stop signals, which others may send, too: the order is what the worker has written."""

    def __init__(self, end: int) -> None:
        """``end``: the file descriptor of the pipe."""
        os.set_blocking(end, False)
        self._end = end
        #: Called at the order. Before the lanes begin, there is nothing to wait for.
        self.stop: Callable[[], Any] = lambda: os._exit(EX_OK)

    def on_signal(self, *_: Any) -> None:
        """Stop if the worker says so."""
        try:
            ordered = os.read(self._end, 1)
        except BlockingIOError:
            return
        if ordered:
            self.stop()
