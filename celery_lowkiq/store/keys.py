"""The only place that spells a Redis key.

Every shard has a fixed set of keys under one hash tag, so that each script can declare all it touches.
A queue's name holds no brace, and the shard's number follows the last colon, so no name reaches the key of
another queue. A client may put a prefix in front of all keys and channels; it holds no brace either, so that
each key keeps its slot of a cluster.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.views import HOUR, Span

#: The storage format, which a queue's own key names; its shards do in lib/meta.lua.
FORMAT = 4
#: The beginning of all keys. It is the same in all formats, so that each finds and refuses the others.
PREFIX = "lowkiq:1:"
#: Commands without a key.
KEYLESS = frozenset({"CONFIG GET", "INFO", "PING", "TIME", "WAIT", "WAITAOF"})
#: Commands whose words are all keys. Of others, the first word is the only key.
OF_KEYS = frozenset({"DEL", "EXISTS"})
#: In tests, microseconds to add to Redis's clock.
CLOCK_KEY = "lowkiq:test:clock"

#: Keys of a shard, with their Redis types.
SHARD_KEYS = {
    "lease": "hash",  # owner, epoch, counter, stopping, leaving, server, since
    # shards, score, request, claim, kind; last_arrival, first_arrival, last_call: largest numbers given out;
    # senders_cursor, done_scores_cursor: of scans; spill_difference: finish_repair.lua;
    # counts processed, failed, merged, dead, dropped; format: see lib/meta.lua;
    # extra: of payloads, see lib/meta.lua;
    # gen, staying, fencing: of a migration, see lib/migration.lua, stay.lua and fence.lua;
    # pauses: paused (of the shard, since when), queue_paused, queue_pause (number of the queue's last change)
    "meta": "hash",
    "senders": "hash",  # sender -> last n, and its time
    "due": "zset",  # id -> perform_in of a waiting job of priority 0
    "due_prioritized": "zset",  # id -> perform_in of a waiting job of another priority
    "by_priority": "zset",  # id -> priority and perform_in, in one number, of a job in due_prioritized
    "paused": "zset",  # id that is paused, or held by a death -> since when, see lib/waiting.lua
    "due_paused": "zset",  # id -> perform_in of a waiting job of such an id
    "moving": "zset",  # id -> perform_in of a waiting job that no claim takes until a mover has sorted it
    "jobs": "hash",  # id -> packed payloads of a waiting job
    "spill": "hash",  # id, payload -> place, of waiting jobs with many payloads
    "spill_order": "zset",  # id, place, payload
    "calls": "zset",  # equal scores: id, digest of the payload, number, record of a call
    "debounce": "hash",  # id -> time of the first call (us), earliest perform_in
    "early_due": "hash",  # id -> own perform_in of a failed waiting job that a call made due earlier
    "done_scores": "hash",  # id -> highest score processed with success, and its time (s)
    "buckets": "zset",  # id -> time when its bucket is full again (us)
    "failed": "zset",  # id -> retry_count of a waiting job that failed; the fraction is its isolation
    "errors": "hash",  # id -> last error of a waiting job that failed
    "claimed": "zset",  # id -> claim number of a job in processing
    "processing": "hash",  # id -> record of a job in processing
    "tries": "hash",  # id -> log of the last tries of a job that failed
    "crash_marks": "hash",  # id -> mark of a job that was in processing when its owner died
    "dead": "zset",  # id -> updated_at of a job in the morgue
    "dead_ids": "zset",  # equal scores: ids in the morgue
    "dead_jobs": "hash",  # as jobs, spill, spill_order and errors, for the morgue
    "dead_spill": "hash",
    "dead_spill_order": "zset",
    "dead_errors": "hash",
    # Fields of a migration to another number of shards:
    "inflight": "zset",  # id -> claim number of a job that was in processing when the migration began here
    "arrived": "zset",  # equal scores: ids whose waiting job is newer than what another shard may have
    # <shard> -> number and records of the transfer to it; sent:<shard>, received:<shard> -> last numbers;
    # part:<id>, of which a part has left
    "outbox": "hash",
}

#: Keys with entries of ids; ``tests/store/test_kept_of_an_id.py`` checks that each step of a job's life
#: handles all of them.
ID_KEYS: frozenset[str] = frozenset(
    SHARD_KEYS.keys() - {"lease", "meta", "senders", "inflight", "arrived", "outbox"}
)

#: Keys that headers of scripts name together, as ``@waiting``. Question mark: see ``script``.
KEY_GROUPS: dict[str, tuple[str, ...]] = {
    "waiting": ("due", "due_prioritized?", "by_priority?", "paused?", "due_paused?", "moving?"),
    "morgue": ("dead", "dead_ids", "dead_jobs", "dead_spill", "dead_spill_order", "dead_errors"),
}

#: Keys of a tracker, with their Redis types.
TRACKER_KEYS = {
    "tracker": "hash",  # name, opened, ttl, closed, cancelled, added, latest, and a count for each state
    "tracked": "hash",  # task id -> epoch, claim and end of the last run, when, progress, what it is of
    "places": "zset",  # task id -> state and place of arrival in one number
    "messages": "hash",  # task id -> the last messages
}

#: The same by all names that scripts use: those bound to waiting or dead jobs, and those of a whole queue.
KEY_TYPES = SHARD_KEYS | {
    "index": "zset",
    "records": "hash",
    "queue": "hash",
    "nodes": "hash",
    "tokens": "hash",
    "report": "hash",
    "reports": "zset",
    "history": "hash",
    "failures": "hash",
    "failure_ranks": "zset",
    **TRACKER_KEYS,
}


@dataclass(frozen=True)
class ShardKeys:
    """Key of a shard by its name in SHARD_KEYS."""

    prefix: str
    #: Keys by their names, kept because each script uses the same names.
    bound: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __getitem__(self, name: str) -> str:
        return self.prefix + name

    def bind(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys of these names, and keep them in ``bound``."""
        keys = self.bound[names] = tuple(self.prefix + name for name in names)
        return keys

    def all(self) -> list[str]:
        """Every key that the shard may have."""
        return [self.prefix + name for name in SHARD_KEYS]


#: Names in headers of scripts that handle waiting or dead jobs, and their keys for waiting jobs.
WAITING_KEYS = {"records": "jobs"}
#: Their keys for dead jobs; ``dead`` replaces each index of waiting jobs, and ``paused`` is of ids.
MORGUE_KEYS = {
    **dict.fromkeys(("due", "due_paused", "due_prioritized", "by_priority", "moving", "failed"), "dead"),
    "errors": "dead_errors",
    "records": "dead_jobs",
    "spill": "dead_spill",
    "spill_order": "dead_spill_order",
}


@dataclass(frozen=True)
class KeyAliases:
    """A shard's keys under the names of WAITING_KEYS or MORGUE_KEYS."""

    keys: ShardKeys
    names: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.keys[self.names.get(name, name)]


@lru_cache(maxsize=8192)
def shard_keys(shard: ShardRef) -> ShardKeys:
    """Keys of a shard."""
    return ShardKeys(f"{PREFIX}{{{shard.queue}:{shard.index}}}:")


def queue_key(queue: str) -> str:
    """Hash with the queue's number of shards, storage format, and last pause."""
    return f"lowkiq:queue:{{{queue}}}"


def nodes_key(queue: str) -> str:
    """Hash with the heartbeats of the nodes that serve the queue: ``<owner> <lanes>`` -> counter."""
    return f"{PREFIX}nodes:{{{queue}}}"


def tokens_key(queue: str) -> str:
    """Hash of a queue with a rate limit: ``left`` -> tokens, time; ``rate`` -> tokens a second;
    ``by <holder>`` -> last number, granted tokens, time.
    """
    return f"{PREFIX}tokens:{{{queue}}}"


def ticket_key(ticket: str) -> str:
    """Hash of a command that only one worker executes: ``by`` -> its name."""
    return f"{PREFIX}ticket:{_digest(ticket)}"


def report_key(owner: str) -> str:
    """Hash with a node's report: started, at, text. The owner is hashed: it may have any characters."""
    return f"{PREFIX}report:{{nodes}}:{_digest(owner)}"


def reports_key() -> str:
    """Sorted set of the nodes that have a report: owner -> time of the report."""
    return f"{PREFIX}reports:{{nodes}}"


def history_key(queue: str, span: Span = HOUR) -> str:
    """Hash with a ring buffer: index of a time slot -> ``<slot> <at> <processed> <failed> <lag>``.

    That of the hour also has counters by shard: ``shards <index>`` -> ``<minute> <at> <processed>,...``.
    """
    return f"{PREFIX}history:{{{queue}}}{'' if span == HOUR else f':{span.name}'}"


def failures_key(queue: str) -> str:
    """Hash of groups of failures: fingerprint -> ``<count> <first> <last>``; ``about:<fingerprint>`` -> its
    description.
    """
    return f"{PREFIX}failures:{{{queue}}}"


def failure_ranks_key(queue: str) -> str:
    """Sorted set of these fingerprints; the one with the smallest rank is removed first."""
    return f"{PREFIX}failure_ranks:{{{queue}}}"


@dataclass(frozen=True)
class TrackerKeys:
    """Key of a tracker by its name in TRACKER_KEYS."""

    id: str

    def __getitem__(self, name: str) -> str:
        return f"{PREFIX}tracker:{{{self.id}}}:{name}"


#: Sorted set of all trackers by the time of their opening.
TRACKERS_KEY = f"{PREFIX}trackers"

#: Stream of the last changes that people made.
AUDIT_KEY = f"{PREFIX}audit"


def tracker_channel(tracker: str) -> str:
    """Channel that announces the end of the last pending call of a tracker."""
    return f"{PREFIX}tracked:{{{tracker}}}"


@lru_cache(maxsize=8192)
def channel(queue: str) -> str:
    """Channel of pushes, ``<shard> <perform_in>``, and released shards, ``<shard> released``."""
    return f"{PREFIX}pushed:{{{queue}}}"


def with_prefix(prefix: str, command: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a command of the store with a prefix in front of its keys."""
    name, *words = command
    if name in KEYLESS:
        return command
    keys = len(words) if name in OF_KEYS else 1
    return (name, *(prefix + key for key in words[:keys]), *words[keys:])


def key_pattern(name: str, queue: str | None = None) -> str:
    """Pattern of ACL rules for the keys of a name, of one queue or of all.

    A queue whose name begins with that of another one, a colon and a digit matches the other's pattern.
    """
    of_queue = "*" if queue is None else literal(queue)
    if name in SHARD_KEYS:
        return f"{PREFIX}{{{of_queue if queue is None else f'{of_queue}:[0-9]*'}}}:{name}"
    if name in TRACKER_KEYS:
        return f"{PREFIX}tracker:{{*}}:{name}"
    patterns = {
        "queue": f"lowkiq:queue:{{{of_queue}}}",
        "nodes": f"{PREFIX}nodes:{{{of_queue}}}",
        "tokens": f"{PREFIX}tokens:{{{of_queue}}}",
        # And those of other spans.
        "history": f"{PREFIX}history:{{{of_queue}}}*",
        "failures": f"{PREFIX}failures:{{{of_queue}}}",
        "failure_ranks": f"{PREFIX}failure_ranks:{{{of_queue}}}",
        "ticket": f"{PREFIX}ticket:*",
        "report": f"{PREFIX}report:{{nodes}}:*",
        "reports": reports_key(),
        "trackers": TRACKERS_KEY,
        "audit": AUDIT_KEY,
    }
    return patterns[name]


def channel_pattern(name: str, queue: str | None = None) -> str:
    """Pattern of ACL rules for the channels of pushes, or of trackers."""
    if name == "tracked":
        return f"{PREFIX}tracked:{{*}}"
    return channel("*" if queue is None else literal(queue))


def literal(text: str) -> str:
    """The pattern of a text alone."""
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def announcement(shard: ShardRef) -> dict[str, Any]:
    """Arguments of scripts that announce due jobs of a shard."""
    return {"channel": channel(shard.queue), "index": shard.index}


def shard_of_key(key: str) -> ShardRef | None:
    """Return the shard of a key; None for a key of no shard."""
    prefix, _, rest = key.partition("{")
    queue, _, index = rest.partition("}:")[0].rpartition(":")
    if prefix != PREFIX or not (queue and index.isdecimal()):
        return None
    return ShardRef(queue, int(index))


def queue_of_channel(name: str) -> str:
    return name.partition("{")[2][:-1]


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
