"""The timeline of an id: what is next, its failed tries, the times between them, and changes by people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from .diagnosis import DiagnosisFacts, Waiting
from .fingerprints import masked
from .views import Try

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
    """Add a divider where the retries of the job began again, unless an event tells why."""
    found: list[Entry] = []
    for before, entry in pairwise([None, *past]):
        if before and before.failed and entry and entry.failed and _is_restart(before.failed, entry.failed):
            found.append(Entry("again", text="Its retries began again"))
        found.extend([entry] if entry else ())
    last, waiting = found[-1].failed if found else None, facts.waiting
    if last is not None and waiting is not None and waiting.retry_count < last.retry_count:
        found.append(Entry("again", text="Its retries begin again"))
    return found


def _is_restart(before: Try, after: Try) -> bool:
    return after.retry_count < before.retry_count


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
    """What has to be done before the job runs; "" when its time is enough."""
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
