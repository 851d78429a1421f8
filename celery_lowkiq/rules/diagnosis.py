"""Why an id is not running, in words: decided from what was read at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .models import ShardRef
from .reports import Running
from .text import QUOTED, duration, error_line, job_names, moment, shortened, since

#: A job that a claim has put off is due when its id has a token, to so many s.
CLOSE = 0.001


@dataclass(frozen=True)
class Owner:
    """The node that has the id's shard, and what its lane for the shard does."""

    name: str
    #: Unix s.
    since: float | None = None
    #: For how many s it was not heard of; None: it has not reported for an hour.
    silent: float | None = None
    #: Whether it was heard of within its lease.
    alive: bool = False
    #: Whether it stops or is quiet, and gives the shard away.
    leaving: bool = False
    lane: str | None = None
    running: Running | None = None

    @property
    def place(self) -> str:
        """In words: node and lane."""
        return f"node {self.name} {self.lane}" if self.lane else f"node {self.name}"


@dataclass(frozen=True)
class Waiting:
    """A job that waits. Its error is that of its last try."""

    perform_in: float
    retry_count: int = -1
    error: str | None = None
    #: How many jobs of the shard come before it, once it is due.
    ahead: int = 0
    #: Of one whose last run failed as a whole: how many jobs its next batch has at most.
    largest_batch: int = 0


@dataclass(frozen=True)
class Dead:
    """Payloads of the id in the morgue: of the last death, its Unix time (s) and error."""

    updated_at: float
    error: str | None = None


@dataclass(frozen=True)
class Facts:
    """All that was read of an id and its shard. ``now`` is Redis's clock, in Unix s."""

    id: str
    shard: ShardRef
    now: float
    waiting: Waiting | None = None
    claimed: bool = False
    dead: Dead | None = None
    #: Whether it was in processing when its worker died.
    suspect: bool = False
    #: None: nobody has the shard, since ``unowned_since``; None there, too: nobody ever had it.
    owner: Owner | None = None
    unowned_since: float | None = None
    #: In how many s a node may take it; None: none waits for it.
    free_in: float | None = None
    #: Since when (Unix s) all of the queue, the shard, or the id is paused.
    queue_paused: float | None = None
    shard_paused: float | None = None
    id_paused: float | None = None
    #: Of a limited queue: runs a second, and in how many s the next may begin (0: now).
    rate: float | None = None
    token_wait: float = 0.0
    max_retries: int | None = None
    #: Of a task that limits each id: its runs a second, and when (Unix s) the id has a token.
    id_rate: float | None = None
    id_token_at: float = 0.0

    @property
    def pauses(self) -> tuple[tuple[str, float], ...]:
        """What is paused, in words, and since when."""
        found = (
            (f"Queue {self.shard.queue}", self.queue_paused),
            (f"Shard {self.shard.index}", self.shard_paused),
            (f"Id {self.id}", self.id_paused),
        )
        return tuple((what, at) for what, at in found if at is not None)


@dataclass(frozen=True)
class Reason:
    """One of the reasons: its kind for programs, a sentence for people."""

    kind: str
    text: str


@dataclass(frozen=True)
class Why:
    """The answer. ``kind`` is that of the main reason, which comes first; ``text`` is all of them."""

    kind: str
    text: str
    reasons: tuple[Reason, ...]
    facts: Facts


def why(facts: Facts) -> Why:
    """Where the id is, and what it waits for. Kinds: nowhere, running, claimed, behind_itself, paused,
    scheduled, unowned, silent, leaving, limited, suspect, behind, due, dead.
    """
    reasons = tuple(_reasons(facts))
    return Why(reasons[0].kind, " ".join(reason.text for reason in reasons), reasons, facts)


def _reasons(facts: Facts) -> Iterator[Reason]:
    if facts.claimed:
        yield _claimed(facts)
        if facts.waiting is not None:
            yield Reason("behind_itself", "Another call waits behind it, and runs after it.")
    elif facts.waiting is not None:
        yield from _hindrances(facts, facts.waiting)
    if facts.dead is not None:
        yield _dead(facts, facts.dead)
    if not facts.claimed and facts.waiting is None and facts.dead is None:
        text = f"There is no job {facts.id}: it is done, or was deleted, or never pushed."
        yield Reason("nowhere", text)
        yield from _pauses(facts)


def _claimed(facts: Facts) -> Reason:
    """A run of which no node tells is about to begin, or has just ended."""
    owner = facts.owner
    if owner is None:
        return _unowned(facts)
    if not owner.alive:
        return _silent(owner, "It was running on")
    run = owner.running
    if run is None:
        return Reason("claimed", f"It is claimed by {owner.place}, and about to run, or has just run.")
    if run.shard == facts.shard and facts.id in run.ids:
        return Reason("running", f"It has been running for {_so_long(owner, run)}, on {owner.place}.")
    text = f"It is claimed by {owner.place}, which {_runs(facts, owner, run)}: it runs with that, or next."
    return Reason("claimed", text)


def _hindrances(facts: Facts, waiting: Waiting) -> Iterator[Reason]:
    """Of a job that waits and is not in processing, the strongest first."""
    yield from _pauses(facts)
    limited = facts.id_token_at > facts.now and facts.id_token_at >= waiting.perform_in - CLOSE
    later = limited or waiting.perform_in > facts.now
    if limited:
        yield _limited(facts)
    elif later:
        yield _scheduled(facts, waiting)
    lacking = _without_owner(facts)
    if lacking is not None:
        yield lacking
    if later or facts.owner is None or not facts.owner.alive:
        return
    if facts.token_wait > 0:
        text = f"The rate limit of the queue, {facts.rate:g} runs a second, is used up: in "
        yield Reason("limited", f"{text}{duration(facts.token_wait)} the next may begin.")
    if facts.suspect:
        yield Reason("suspect", "It was running when its worker died: it runs alone, one such job at a time.")
    if lacking is None and not facts.pauses:
        yield _next(facts, waiting, facts.owner)


def _limited(facts: Facts) -> Reason:
    text = (
        f"Its id may run once in {duration(1 / (facts.id_rate or 1.0))}, and the next run may begin in "
        f"{duration(facts.id_token_at - facts.now)}."
    )
    return Reason("limited", text)


def _without_owner(facts: Facts) -> Reason | None:
    """When the shard has no owner, or one that does nothing for it."""
    owner = facts.owner
    if owner is None:
        return _unowned(facts)
    if not owner.alive:
        return _silent(owner, f"Shard {facts.shard.index} belongs to")
    if owner.leaving:
        text = f"Node {owner.name} stops or is quiet: it begins nothing new, and gives the shard away."
        return Reason("leaving", text)
    return None


def _pauses(facts: Facts) -> Iterator[Reason]:
    for what, at in facts.pauses:
        yield Reason("paused", f"{what} is paused {since(at, facts.now)}.")


def _scheduled(facts: Facts, waiting: Waiting) -> Reason:
    text = (
        f"It waits for its time: in {duration(waiting.perform_in - facts.now)} ({moment(waiting.perform_in)})"
    )
    if waiting.retry_count >= 0:
        retries = facts.max_retries
        most = "" if retries is None or waiting.retry_count >= retries else f" of {retries}"
        text += f", retry {waiting.retry_count + 1}{most}{_isolated(waiting)}{_after(waiting.error)}"
    return Reason("scheduled", f"{text}.")


def _unowned(facts: Facts) -> Reason:
    left = facts.unowned_since
    had = "never had an owner" if left is None else f"has no owner {since(left, facts.now)}"
    text = f"Shard {facts.shard.index} {had}: does a worker serve queue {facts.shard.queue}?"
    if facts.free_in is not None:
        text = (
            f"Shard {facts.shard.index} {had}: Redis restarted, failed over or lost data, and it is free "
            f"in {duration(facts.free_in)}, when a former owner's lease has run out."
        )
    return Reason("unowned", text)


def _silent(owner: Owner, what: str) -> Reason:
    ago = (
        f"last heard of {duration(owner.silent)} ago"
        if owner.silent is not None
        else "not heard of for an hour"
    )
    text = (
        f"{what} node {owner.name}, which was {ago}: another node takes the shard when the lease has run out."
    )
    return Reason("silent", text)


def _next(facts: Facts, waiting: Waiting, owner: Owner) -> Reason:
    """Due, and nothing in the way but other work."""
    run = owner.running
    busy = "" if run is None else _runs(facts, owner, run)
    if waiting.ahead:
        jobs = f"{waiting.ahead} due job{'s' if waiting.ahead > 1 else ''} of shard {facts.shard.index}"
        doing = f", which {busy}" if busy else ""
        return Reason("behind", f"It waits behind {jobs}, owned by {owner.place}{doing}.")
    if busy:
        return Reason("behind", f"It is the next of shard {facts.shard.index}: {owner.place} {busy}.")
    return Reason("due", f"It is due, and about to be claimed by {owner.place}.")


def _dead(facts: Facts, dead: Dead) -> Reason:
    alone = facts.waiting is None and not facts.claimed
    what = "It is" if alone else "Older payloads of it are"
    text = f"{what} in the morgue {since(dead.updated_at, facts.now)}{_after(dead.error)}."
    return Reason("dead", text)


def _runs(facts: Facts, owner: Owner, run: Running) -> str:
    where = "" if run.shard == facts.shard else f" of {run.shard}"
    return f"has been running {job_names(run.ids, run.count)}{where} for {_so_long(owner, run)}"


def _so_long(owner: Owner, run: Running) -> str:
    return duration(run.seconds + (owner.silent or 0.0))


def _isolated(waiting: Waiting) -> str:
    if waiting.largest_batch == 1:
        return " alone"
    return f" in a batch of at most {waiting.largest_batch}" if waiting.largest_batch else ""


def _after(error: str | None) -> str:
    line = shortened(error_line(error or ""), QUOTED)
    return f" after: {line}" if line else ""
