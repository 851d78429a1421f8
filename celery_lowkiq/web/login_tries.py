"""Limits wrong passwords by the address that they come from."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from .errors import Refused
from .proxies import subscriber

#: Wrong passwords that an address has at once, and seconds until it has another one.
BURST, EVERY = 10, 6.0
#: Maximum number of addresses that are remembered; the one that failed longest ago is forgotten.
MOST = 10_000


class TooManyTries(Refused):
    """An address has given too many wrong passwords. ``after``: s until the next try."""

    def __init__(self, after: float) -> None:
        super().__init__(f"too many wrong passwords from your address: wait {math.ceil(after)} s", 429)
        self.after: int = math.ceil(after)


class LoginTries:
    """Counts wrong passwords by address. ``clock`` returns monotonic time in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        #: By address: the time at which it has all its tries again.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises TooManyTries. Then a right password is not read either: it would tell that it is right."""
        wait = self._full_at.get(subscriber(address), 0.0) - self._clock() - (BURST - 1) * EVERY
        if wait > 0:
            raise TooManyTries(wait)

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        key, now = subscriber(address), self._clock()
        with self._lock:
            self._full_at[key] = max(self._full_at.pop(key, 0.0), now) + EVERY
            if len(self._full_at) > self._most:
                self._full_at.popitem(last=False)
