"""Which deploy and which kill comes when: a pure function of the options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tests.soak.options import Options


@dataclass(frozen=True)
class Deploy:
    """All nodes are stopped (SIGTERM) and started again, one after the other."""

    at: float


@dataclass(frozen=True)
class Kill:
    """SIGKILL to a node, which is started again at once."""

    at: float
    node: int


Step: TypeAlias = Deploy | Kill


def plan(options: Options) -> Iterator[Step]:
    """The steps in order; ``at`` is in s from the start. Kills hit the nodes in turn, half a period after."""
    deploys = _times(options.deploy_every, options.deploy_every, options.seconds)
    kills = _times(options.kill_every / 2, options.kill_every, options.seconds)
    steps: list[Step] = [Deploy(at) for at in deploys]
    steps += [Kill(at, number % options.nodes) for number, at in enumerate(kills)]
    return iter(sorted(steps, key=lambda step: step.at))


def _times(first: float, every: float, end: float) -> Iterator[float]:
    at = first
    while at < end:
        yield at
        at += every
