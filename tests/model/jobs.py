"""What the model keeps of payloads, jobs, and the tokens of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.policies import NOT_ISOLATED, Isolation, token_at, turn


@dataclass
class Item:
    """A payload with its score; ``arrival`` orders equal scores; ``flag`` says which calls are recorded."""

    payload: bytes
    score: float
    arrival: int
    flag: str = ""
    signature: bytes = b""


@dataclass
class ModelJob:
    items: dict[bytes, Item]
    perform_in: float
    retry_count: int = -1
    error: bytes | None = None
    claim: int = 0
    priority: int = 0
    isolation: Isolation = NOT_ISOLATED
    #: Of a claimed job: how many payloads the claim drops, and whether it came before its time.
    unwanted: int = 0
    early: bool = False

    def in_order(self) -> list[Item]:
        return sorted(self.items.values(), key=lambda item: (item.score, item.arrival))

    def first(self) -> bytes | None:
        """The payload that runs first."""
        return next((item.payload for item in self.in_order()), None)

    def forget_failure(self) -> None:
        """It has not failed."""
        self.retry_count, self.error, self.isolation = -1, None, NOT_ISOLATED

    def turn(self, now: float, max_wait: float) -> tuple[int, float, int]:
        """Where it is among those that are due."""
        return turn(self.priority, self.perform_in, now, max_wait)

    def stored_turn(self, now: float, max_wait: float) -> tuple[int, float, int]:
        """The same as the store has it: priority and time are one number there, to some 30 us."""
        behind = self.priority * 2.0**34
        return turn(self.priority, behind + self.perform_in - behind, now, max_wait)

    def is_apart(self, taken: Sequence[ModelJob]) -> bool:
        """Rule 5: isolated jobs run among themselves, in batches that are as small as each asks for."""
        largest = self.isolation.largest
        if not taken:
            return False
        return (taken[0].isolation.largest > 0) != (largest > 0) or 0 < largest <= len(taken)


@dataclass
class Buckets:
    """Of each id. Times are Unix s."""

    rate: float | None
    full_at: dict[str, float] = field(default_factory=dict)

    def token_at(self, job_id: str) -> float:
        return 0.0 if self.rate is None else token_at(self.full_at.get(job_id, 0.0), self.rate)

    def take(self, job_id: str, now: float) -> None:
        if self.rate is not None:
            self.full_at[job_id] = max(now, self.full_at.get(job_id, 0.0)) + 1 / self.rate

    def give_back(self, job_id: str) -> None:
        if self.rate is not None:
            self.full_at[job_id] -= 1 / self.rate


def score_of(job: Call) -> float:
    """A time of sending is in the past here."""
    score = job.sent if job.score is None else job.score
    assert score is not None
    return score
