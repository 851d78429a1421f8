"""Steps: one procedure for threads, which execute it with a blocking client, and for event loops.

The procedure is a generator. It yields what is to be done; its caller does that, and sends the result in, or
throws the error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Send(NamedTuple):
    """Send commands in one round trip. Result: their replies; that of a refused command is its error.

    Raises StoreError when the outcome of all is unknown.
    """

    commands: Sequence[tuple[Any, ...]]


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class Block(NamedTuple):
    """Call a function that uses the blocking client, as in the rare cases that take many round trips."""

    function: Callable[[], Any]


Step: TypeAlias = Send | Pause | Block
Steps: TypeAlias = Generator[Step, Any, T]


def execute(steps: Steps[T], act: Callable[[Step], Any]) -> T:
    """Execute the steps by ``act``. Raises what the procedure raises."""
    try:
        step = next(steps)
        while True:
            try:
                result = act(step)
            except BaseException as error:  # noqa: BLE001 - the procedure decides
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        done: T = end.value
        return done
