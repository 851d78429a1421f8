"""Diagnosis: why an id does not run, and the events of its life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby, pairwise
from typing import TypedDict

from celery_lowkiq.rules.fingerprints import masked
from celery_lowkiq.rules.health import expected
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.text import (
    QUOTED,
    count_of,
    duration,
    format_job_ids,
    last_error_line,
    moment,
    shard_names,
    shortened,
    since,
)
from celery_lowkiq.rules.views import Running, Try

# Diagnosis of why an id is not running, as text, from one consistent set of facts.

#: Tolerance in s between the due time of a rate-limited job and the time its id gets a token.
TOKEN_TOLERANCE = 0.001


class Terms(TypedDict):
    """Options of the task that a diagnosis needs: ``rate`` in runs per second, and ``max_retries``.

    ``merges``: one run gets all payloads of a job; otherwise (``by=``) each call runs alone.
    """

    rate: float | None
    max_retries: int | None
    merges: bool


class Missing(Enum):
    """Data that an unreachable master of a cluster stores, and the answer that is unknown without it."""

    REPORTS = "the reports of nodes", "who is alive and what runs"
    TOKENS = "the queue's own keys", "the use of its rate limit"


@dataclass(frozen=True)
class Owner:
    """The node that owns the id's shard, and the state of the shard's lane."""

    name: str
    #: Unix s.
    since: float | None = None
    #: Seconds since its last report; None: no report for an hour.
    silent: float | None = None
    #: True if it reported within its lease time; None: its reports cannot be read now.
    alive: bool | None = False
    #: True if it is stopping or quiet, and releases the shard.
    leaving: bool = False
    lane: str | None = None
    running: Running | None = None

    @property
    def place(self) -> str:
        """Name of the node and of the lane, as text."""
        return f"node {self.name} {self.lane}" if self.lane else f"node {self.name}"


@dataclass(frozen=True)
class Waiting:
    """A waiting job; ``error`` is that of its last try."""

    perform_in: float
    retry_count: int = -1
    error: str | None = None
    #: Due jobs of the shard that are claimed before it.
    ahead: int = 0
    #: Maximum size of its next batch after its last batch failed as a whole; 0: not limited.
    largest_batch: int = 0
    #: Number of its payloads.
    payloads: int = 1


@dataclass(frozen=True)
class DueBefore:
    """A shard of the same lane whose first job has been due for longer, for ``seconds``."""

    shard: ShardRef
    seconds: float


@dataclass(frozen=True)
class Dead:
    """Payloads of the id in the morgue: Unix time (s) and error of the last one buried."""

    updated_at: float
    error: str | None = None


@dataclass(frozen=True)
class DiagnosisFacts:
    """The state of an id and its shard. ``now`` is Redis's clock, in Unix s."""

    id: str
    shard: ShardRef
    now: float
    waiting: Waiting | None = None
    claimed: bool = False
    dead: Dead | None = None
    #: True if it was in processing when its worker died.
    suspect: bool = False
    #: True if no claim takes it before a mover has sorted it: the queue gets another number of shards.
    moving: bool = False
    #: None: the shard has no owner since ``unowned_since``; None there, too: it never had one.
    owner: Owner | None = None
    unowned_since: float | None = None
    #: Seconds until a waiting node may take it; None: no node waits for it.
    free_in: float | None = None
    #: Unix s of the pause of the whole queue, the shard, or the id.
    queue_paused: float | None = None
    shard_paused: float | None = None
    id_paused: float | None = None
    #: Since when (Unix s) its dead payload holds it.
    held_since: float | None = None
    #: Rate limit of the queue (runs per second), and seconds until the next run may begin.
    rate: float | None = None
    token_wait: float = 0.0
    max_retries: int | None = None
    #: True if one run gets all payloads of the job.
    merges: bool = True
    #: Rate limit of each id (runs per second), and the Unix time (s) at which this id has a token.
    id_rate: float | None = None
    id_token_at: float = 0.0
    #: The other shards of its lane that are due before it, the one that waits longest first.
    due_before: tuple[DueBefore, ...] = ()
    #: Facts that are unknown because their master of a cluster is unreachable.
    missing: tuple[Missing, ...] = ()

    @property
    def pauses(self) -> tuple[tuple[str, float], ...]:
        """The pauses that apply to the id: a text, and Unix s of its beginning."""
        candidates = (
            (f"Queue {self.shard.queue}", self.queue_paused),
            (f"Shard {self.shard.index}", self.shard_paused),
            (f"Id {self.id}", self.id_paused),
        )
        return tuple((name, at) for name, at in candidates if at is not None)


@dataclass(frozen=True)
class Reason:
    """One reason: ``kind`` for programs, ``text`` for people."""

    kind: str
    text: str


@dataclass(frozen=True)
class Why:
    """The diagnosis. ``kind`` is that of the first, main reason; ``text`` joins the texts of all reasons."""

    kind: str
    text: str
    reasons: tuple[Reason, ...]
    facts: DiagnosisFacts


def why(facts: DiagnosisFacts) -> Why:
    """Return where the id is and what it waits for.

    Kinds: nowhere, running, claimed, behind_itself, behind_dead, paused, moving, scheduled,
    unowned, silent, leaving, limited, suspect, behind, due, dead, unknown.
    """
    reasons = (*_reasons(facts), *map(_unknown, facts.missing))
    return Why(reasons[0].kind, " ".join(reason.text for reason in reasons), reasons, facts)


def _reasons(facts: DiagnosisFacts) -> Iterator[Reason]:
    if facts.claimed:
        yield _claimed(facts)
        if facts.waiting is not None:
            yield Reason("behind_itself", _behind_itself(facts, facts.waiting))
    elif facts.waiting is not None and facts.held_since is not None:
        yield _behind_dead(facts, facts.held_since)
        yield from _pauses(facts)
        return
    elif facts.waiting is not None and facts.moving:
        yield from _pauses(facts)
        text = f"Queue {facts.shard.queue} gets another number of shards, and the job is not sorted yet."
        yield Reason("moving", text)
    elif facts.waiting is not None:
        yield from _reasons_to_wait(facts, facts.waiting)
    if facts.dead is not None:
        yield _dead(facts, facts.dead)
    if not facts.claimed and facts.waiting is None and facts.dead is None:
        text = f"There is no job {facts.id}: it is done, or was deleted, or never pushed."
        yield Reason("nowhere", text)
        yield from _pauses(facts)


def _claimed(facts: DiagnosisFacts) -> Reason:
    owner = facts.owner
    if owner is None:
        return _unowned(facts)
    if owner.alive is None:
        return Reason("claimed", f"It is claimed by {owner.place}.")
    if not owner.alive:
        return _unresponsive(owner, "It was running on")
    run = owner.running
    if run is None:
        return Reason("claimed", f"It is claimed by {owner.place}, and about to run, or has just run.")
    if run.shard == facts.shard and facts.id in run.ids:
        return Reason("running", f"It has been running for {_run_time(owner, run)}, on {owner.place}.")
    activity = _is_running(facts, owner, run)
    return Reason("claimed", f"It is claimed by {owner.place}, which {activity}: it runs with that, or next.")


def _behind_itself(facts: DiagnosisFacts, waiting: Waiting) -> str:
    count = f"{waiting.payloads:,}"
    if waiting.payloads <= 1:
        return "Another call waits behind it, and runs after it."
    if not facts.merges:
        return f"{count} calls wait behind it, and run after it, one by one."
    return f"Later calls wait behind it, merged into one job with {count} payloads, which runs after it."


def _reasons_to_wait(facts: DiagnosisFacts, waiting: Waiting) -> Iterator[Reason]:
    """Yield reasons in descending order of importance; the job is not in processing."""
    yield from _pauses(facts)
    limited = facts.id_token_at > facts.now and facts.id_token_at >= waiting.perform_in - TOKEN_TOLERANCE
    later = limited or waiting.perform_in > facts.now
    if limited:
        yield _limited(facts)
    elif later:
        yield _scheduled(facts, waiting)
    owner_problem = _owner_problem(facts)
    if owner_problem is not None:
        yield owner_problem
    if later or facts.owner is None or facts.owner.alive is False:
        return
    if facts.token_wait > 0:
        text = f"The rate limit of the queue, {facts.rate:g} runs a second, is used up: in "
        yield Reason("limited", f"{text}{duration(facts.token_wait)} the next may begin.")
    if facts.suspect:
        yield Reason("suspect", "It was running when its worker died: it runs alone, one such job at a time.")
    if owner_problem is None and not facts.pauses:
        yield from _its_turn(facts, waiting, facts.owner)


def _limited(facts: DiagnosisFacts) -> Reason:
    text = (
        f"Its id may run once in {duration(1 / (facts.id_rate or 1.0))}, and the next run may begin in "
        f"{duration(facts.id_token_at - facts.now)}."
    )
    return Reason("limited", text)


def _owner_problem(facts: DiagnosisFacts) -> Reason | None:
    owner = facts.owner
    if owner is None:
        return _unowned(facts)
    if owner.alive is False:
        return _unresponsive(owner, f"Shard {facts.shard.index} belongs to")
    if owner.leaving:
        text = f"Node {owner.name} stops or is quiet: it begins nothing new, and releases the shard."
        return Reason("leaving", text)
    return None


def _pauses(facts: DiagnosisFacts) -> Iterator[Reason]:
    for name, at in facts.pauses:
        yield Reason("paused", f"{name} has been paused {since(at, facts.now)}.")


def _scheduled(facts: DiagnosisFacts, waiting: Waiting) -> Reason:
    text = (
        f"It waits for its time: in {duration(waiting.perform_in - facts.now)} ({moment(waiting.perform_in)})"
    )
    if waiting.retry_count >= 0:
        retries = facts.max_retries
        most = "" if retries is None or waiting.retry_count >= retries else f" of {retries}"
        text += f", retry {waiting.retry_count + 1}{most}{_isolated(waiting)}{_after(waiting.error)}"
    return Reason("scheduled", f"{text}.")


def _unowned(facts: DiagnosisFacts) -> Reason:
    released_at = facts.unowned_since
    state = (
        "never had an owner" if released_at is None else f"has had no owner {since(released_at, facts.now)}"
    )
    text = f"Shard {facts.shard.index} {state}: does a worker serve queue {facts.shard.queue}?"
    if facts.free_in is not None:
        text = (
            f"Shard {facts.shard.index} {state}: Redis restarted, failed over or lost data, and it is free "
            f"in {duration(facts.free_in)}, when a former owner's lease has run out."
        )
    return Reason("unowned", text)


def _unresponsive(owner: Owner, subject: str) -> Reason:
    last_report = (
        f"last heard of {duration(owner.silent)} ago"
        if owner.silent is not None
        else "not heard of for an hour"
    )
    then = "another node takes the shard when the lease has run out."
    return Reason("silent", f"{subject} node {owner.name}, which was {last_report}: {then}")


def _its_turn(facts: DiagnosisFacts, waiting: Waiting, owner: Owner) -> Iterator[Reason]:
    yield _next(facts, waiting, owner)
    if facts.due_before:
        text = (
            f"Before it, {owner.lane} works {shard_names(one.shard for one in facts.due_before)}: a job "
            f"there is {duration(facts.due_before[0].seconds)} late, this one "
            f"{duration(facts.now - waiting.perform_in)}."
        )
        yield Reason("behind", text)


def _next(facts: DiagnosisFacts, waiting: Waiting, owner: Owner) -> Reason:
    run = owner.running
    busy = "" if run is None else _is_running(facts, owner, run)
    if waiting.ahead:
        jobs = f"{count_of(waiting.ahead, 'due job')} of shard {facts.shard.index}"
        activity = f", which {busy}" if busy else ""
        return Reason("behind", f"It waits behind {jobs}, owned by {owner.place}{activity}.")
    if busy:
        return Reason("behind", f"It is the next of shard {facts.shard.index}: {owner.place} {busy}.")
    if owner.alive is None:
        return Reason("due", f"It is due, and shard {facts.shard.index} belongs to {owner.place}.")
    return Reason("due", f"It is due, and about to be claimed by {owner.place}.")


def _unknown(missing: Missing) -> Reason:
    what, unknown = missing.value
    return Reason("unknown", f"The master with {what} is unreachable: {unknown} is unknown.")


def _dead(facts: DiagnosisFacts, dead: Dead) -> Reason:
    only_dead = facts.waiting is None and not facts.claimed
    subject = "It has been" if only_dead else "Older payloads of it have been"
    text = f"{subject} in the morgue {since(dead.updated_at, facts.now)}{_after(dead.error)}."
    if facts.held_since is not None:
        text += " Newer calls wait behind it."
    return Reason("dead", text)


def _behind_dead(facts: DiagnosisFacts, since_when: float) -> Reason:
    error = facts.dead.error if facts.dead is not None else None
    text = (
        f"It waits behind a dead payload, which has held it {since(since_when, facts.now)}{_after(error)}. "
        "Requeue or edit the dead payload, or let the id go on."
    )
    return Reason("behind_dead", text)


def _is_running(facts: DiagnosisFacts, owner: Owner, run: Running) -> str:
    other_shard = "" if run.shard == facts.shard else f" of {run.shard}"
    return f"has been running {format_job_ids(run.ids, run.count)}{other_shard} for {_run_time(owner, run)}"


def _run_time(owner: Owner, run: Running) -> str:
    overdue = f", which is overdue ({expected(run)})" if run.overdue else ""
    return f"{duration(run.seconds + (owner.silent or 0.0))}{overdue}"


def _isolated(waiting: Waiting) -> str:
    if waiting.largest_batch == 1:
        return " alone"
    return f" in a batch of at most {waiting.largest_batch}" if waiting.largest_batch else ""


def _after(error: str | None) -> str:
    line = shortened(last_error_line(error or ""), QUOTED)
    return f" after: {line}" if line else ""


# The timeline of an id: what is next, its failed tries, the times between them, and changes by people.

#: Similar tries in a row from which the older ones are folded.
FOLDED = 3
#: Seconds within which a state and a change by a person are the same event.
SAME = 5.0
#: Length (px) of the longest time and the minimum of others.
LONGEST, SHORTEST = 96, 18


@dataclass(frozen=True)
class ShownChange:
    """A change by a person, at a Unix time (s); ``whole``: of the whole queue or shard, not of some ids."""

    at: float
    text: str
    user: str
    reason: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Entry:
    """An event. ``kind``: next, running, stopped, now, try, fold, again, change, dead, held or paused."""

    kind: str
    #: Unix s; None: not known.
    at: float | None = None
    text: str = ""
    failed: Try | None = None
    change: ShownChange | None = None
    #: Older tries that are similar, the latest first.
    folded: tuple[Entry, ...] = ()
    #: Seconds from the entry before it in time, and the length of its line in px.
    gap: float | None = None
    length: int = 0

    @property
    def began_at(self) -> float | None:
        """Unix s of its first event."""
        return self.folded[-1].at if self.folded else self.at


def timeline(
    facts: DiagnosisFacts, tries: Sequence[Try], changes: Sequence[ShownChange]
) -> tuple[Entry, ...]:
    """Return the events of an id, the latest first; empty when nothing is known of it."""
    past = _past(facts, tries, changes)
    begun, future = [*_running(facts)], [*_future(facts, past)]
    if not (past or begun or future):
        return ()
    shown = [*future, Entry("now", facts.now), *begun, *reversed(_folded(past))]
    return _to_scale(shown)


def _past(facts: DiagnosisFacts, tries: Sequence[Try], changes: Sequence[ShownChange]) -> list[Entry]:
    first = min((one.at for one in tries), default=facts.now)
    events = [Entry("change", one.at, change=one) for one in changes if not one.whole or one.at >= first]
    states = [one for one in _states(facts) if not any(_same(one.at, event.at) for event in events)]
    failed = [Entry("try", one.at, failed=one) for one in tries]
    # A job dies in its last try, at the same moment.
    return _with_restarts(sorted([*failed, *events, *states], key=lambda one: one.at or 0.0), facts)


def _same(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) < SAME


def _states(facts: DiagnosisFacts) -> Iterator[Entry]:
    if facts.dead is not None:
        yield Entry("dead", facts.dead.updated_at, "Moved to the morgue")
    if facts.held_since is not None:
        yield Entry("held", facts.held_since, "Held by its dead payload")
    for name, at in facts.pauses:
        yield Entry("paused", at, f"{name} was paused")


def _with_restarts(past: Sequence[Entry], facts: DiagnosisFacts) -> list[Entry]:
    """Add a divider where the retries of the job began again, unless an event gives the reason."""
    found: list[Entry] = []
    for before, entry in pairwise([None, *past]):
        earlier, later = before and before.failed, entry and entry.failed
        if earlier and later and later.retry_count < earlier.retry_count:
            found.append(Entry("again", text="Its retries began again"))
        found.extend([entry] if entry else ())
    last, waiting = found[-1].failed if found else None, facts.waiting
    if last is not None and waiting is not None and waiting.retry_count < last.retry_count:
        found.append(Entry("again", text="Its retries begin again"))
    return found


def _running(facts: DiagnosisFacts) -> Iterator[Entry]:
    if not facts.claimed:
        return
    owner = facts.owner
    run = owner.running if owner is not None else None
    if owner is None or run is None or facts.id not in run.ids:
        yield Entry("running", text=f"Claimed by {owner.place}" if owner else "Claimed")
        return
    at = facts.now - run.seconds - (owner.silent or 0.0)
    yield Entry("running", at, f"Runs on {owner.place}")


def _future(facts: DiagnosisFacts, past: Sequence[Entry]) -> Iterator[Entry]:
    waiting = facts.waiting
    if waiting is None:
        if facts.dead is not None and not facts.claimed:
            yield Entry("stopped", text="Nothing is next: requeue the dead job to run it again")
        return
    run = _run_name(facts, waiting, past)
    if stop := _stop(facts):
        yield Entry("stopped", text=f"{run} {stop}")
    elif facts.claimed:
        yield Entry("next", text=f"{run} when this run has ended")
    elif waiting.perform_in > facts.now:
        owned = f", if a worker owns shard {facts.shard.index} by then" if facts.owner is None else ""
        yield Entry("next", waiting.perform_in, run + owned)
    elif facts.owner is None:
        yield Entry("stopped", text=f"{run} when a worker owns shard {facts.shard.index}")
    else:
        yield Entry("next", text=f"{run} as soon as its lane is free")


def _stop(facts: DiagnosisFacts) -> str:
    """Event that must come before the job runs; "" when its time is enough."""
    if facts.held_since is not None:
        return "when the dead payload is requeued, or the id goes on"
    if facts.pauses:
        names = [name[:1].lower() + name[1:] for name, _ in facts.pauses]
        return f"when {' and '.join(names)} {'is' if len(names) == 1 else 'are'} resumed"
    return "when the job has its place in the new shards" if facts.moving else ""


def _run_name(facts: DiagnosisFacts, waiting: Waiting, past: Sequence[Entry]) -> str:
    merged = f" with {waiting.payloads:,} payloads" if facts.merges and waiting.payloads > 1 else ""
    if waiting.retry_count < 0:
        first = "The next run" if past or facts.claimed else "The first run"
        return f"One run{merged}" if merged else first
    retry, most = waiting.retry_count + 1, facts.max_retries
    return f"Retry {retry}{f' of {most}' if most is not None and retry <= most else ''}{merged}"


def _folded(past: Sequence[Entry]) -> list[Entry]:
    """Fold the tries of a row that have the error of the latest one."""
    found: list[Entry] = []
    for error, group in groupby(past, key=lambda one: masked(one.failed.error) if one.failed else None):
        same = list(group)
        if error is None or len(same) < FOLDED:
            found += same
        else:
            older = tuple(reversed(same[:-1]))
            found += [Entry("fold", older[0].at, folded=older), same[-1]]
    return found


def _to_scale(shown: Sequence[Entry]) -> tuple[Entry, ...]:
    """Add the times between them, with one scale for all."""
    with_gaps = [*_with_gaps([replace(one, folded=(*_with_gaps(one.folded),)) for one in shown])]
    longest = max((part.gap or 0.0 for one in with_gaps for part in (one, *one.folded)), default=0.0)
    return tuple(
        replace(_drawn(one, longest), folded=tuple(_drawn(part, longest) for part in one.folded))
        for one in with_gaps
    )


def _with_gaps(entries: Sequence[Entry]) -> Iterator[Entry]:
    for place, one in enumerate(entries):
        older = next((other.at for other in entries[place + 1 :] if other.at is not None), None)
        began = one.began_at
        yield one if began is None or older is None else replace(one, gap=max(0.0, began - older))


def _drawn(one: Entry, longest: float) -> Entry:
    if one.gap is None or not longest:
        return one
    return replace(one, length=max(SHORTEST, round(LONGEST * one.gap / longest)))
