"""The audit log: a line in the log and an entry in Redis when a change begins, and when it ends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from celery import Celery

from celery_lowkiq.integration.actions import MARK, SHARD, VALUE, Action, Target
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.basics import audit_logger as logger
from celery_lowkiq.rules.errors import InvalidCall, ShardsUnreachable, StoreError
from celery_lowkiq.rules.text import escaped, shortened
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.actions import MAX_BYTES, read_entries, write_entry

#: Maximum number of ids in an entry.
SHOWN_IDS = 5
#: Maximum length of a reason, and of other texts, in characters.
MAX_REASON, MAX_TEXT = 200, 500
_ADDRESS = re.compile(r"[\w.:%]+", re.ASCII)
#: Fields of an entry.
TEXTS = ("user", "address", "action", "state", "queue", "reason", "filter", "what", "error")


@dataclass(frozen=True)
class Change:
    """A requested change. An entry shows the first few ``ids``."""

    user: str
    #: IP address, or ``command line of <host>``.
    address: str
    action: str
    queue: str
    ids: tuple[str, ...] = ()
    shard: int | None = None
    #: Why, in the words of the user; "": none was given.
    reason: str = ""
    #: Filters of the jobs, with limit and rate; or the new number of shards.
    filter: Mapping[str, Any] = field(default_factory=dict)
    #: Change of a payload, with masks.
    what: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > MAX_REASON:
            raise InvalidCall(f"reason is invalid: expected at most {MAX_REASON} characters")

    @classmethod
    def of(
        cls,
        user: str,
        address: str,
        action: Action,
        queue: str,
        target: Target,
        reason: str = "",
        what: str = "",
    ) -> Change:
        named = (one.name for one in action.takes if one not in (SHARD, MARK, VALUE))
        wanted = {name: target.values[name] for name in named if name in target.values}
        shard = target.values.get(SHARD.name)
        return cls(user, address, action.name, queue, target.ids, shard, reason, wanted, what)


@dataclass(frozen=True)
class AuditEntry:
    """An entry of the audit log. ``at``: Unix time (s); ``ids`` are the first of ``id_count``."""

    at: float
    user: str
    address: str
    action: str
    state: str
    queue: str
    ids: tuple[str, ...]
    id_count: int
    shard: int | None
    jobs: int | None
    reason: str
    filter: str
    what: str
    error: str


class Audit:
    """The audit log of an app."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def write(self, change: Change, state: str, count: int | None = None, error: str = "") -> None:
        """Write one entry, with what ``lowkiq_redact`` names masked. Logs when Redis does not take it."""
        clean = context_of(self._app).settings.redactor.text
        entry = AuditEntry(
            at=time.time(),
            user=shortened(change.user, MAX_REASON),
            address=shortened(change.address, MAX_REASON),
            action=change.action,
            state=state,
            queue=shortened(change.queue, MAX_REASON),
            ids=change.ids[:SHOWN_IDS],
            id_count=len(change.ids),
            shard=change.shard,
            jobs=count,
            reason=shortened(clean(change.reason), MAX_REASON),
            filter=shortened(clean(repr(dict(change.filter))), MAX_TEXT) if change.filter else "",
            what=shortened(change.what, MAX_TEXT),
            error=shortened(clean(error), MAX_TEXT),
        )
        logger.info("%s", line_of(entry))
        try:
            write_entry(context_of(self._app).store.client, _stored(entry))
        except StoreError as error:
            logger.error("%s %s: this entry is in no audit log of Redis: %s", entry.action, state, error)

    def around(self, change: Change, act: Callable[[], int]) -> int:
        """Do what a change asks for, with an entry before and after it. ``act`` returns a count of jobs.

        Raises what ``act`` raises.
        """
        self.write(change, "begins")
        try:
            count = act()
        except BaseException as error:
            done = error.count if isinstance(error, ShardsUnreachable) else None
            self.write(change, "failed", done, f"{type(error).__name__}: {error}")
            raise
        self.write(change, "done", count)
        return count

    def read(self, limit: int = 100, after: str | None = None) -> Page[AuditEntry]:
        """Return a page of entries, the latest first. Raises StoreError and InvalidCall."""
        page = read_entries(context_of(self._app).store.client, limit, after)
        return page.map(lambda found: _entry(*found))

    def read_if_there(self, limit: int) -> tuple[AuditEntry, ...] | None:
        """Return the latest entries; None while the master with the log is unreachable and others respond."""
        return context_of(self._app).store.client.unless_unreachable(lambda: self.read(limit).items)


def line_of(entry: AuditEntry) -> str:
    """A line of the log. Values are quoted or escaped, so that they cannot forge another line."""
    shown = ", ".join(map(ascii, entry.ids))
    more = f", ... {entry.id_count} in all" if entry.id_count > SHOWN_IDS else ""
    address = entry.address if _ADDRESS.fullmatch(entry.address) else ascii(entry.address)
    who = f"user={entry.user!a} from={address}"
    parts = [f"{entry.action} {entry.state}: {who} queue={entry.queue!a}"]
    parts += [f"ids=[{shown}{more}]"] if entry.ids else []
    parts += [f"shard={entry.shard}"] if entry.shard is not None else []
    parts += [f"filter={entry.filter.encode('ascii', 'backslashreplace').decode()}"] if entry.filter else []
    parts += [f"what={entry.what!a}"] if entry.what else []
    parts += [f"reason={entry.reason!a}"] if entry.reason else []
    parts += [f"jobs={entry.jobs}"] if entry.jobs is not None else []
    parts += [f"error={entry.error!a}"] if entry.error else []
    return escaped(" ".join(parts))


def _stored(entry: AuditEntry) -> bytes:
    text = _dumped(entry)
    if len(text) > MAX_BYTES:
        text = _dumped(replace(entry, ids=(), reason="", filter="", what="", error=""))
    return text


def _dumped(entry: AuditEntry) -> bytes:
    # Not escaped: of each character at most four bytes, also of a user's and a queue's name.
    return json.dumps(asdict(entry), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _entry(at: float, text: bytes) -> AuditEntry:
    """An entry as it was stored; whoever writes to Redis may have stored another one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    given = found if isinstance(found, dict) else {}
    listed = given.get("ids")
    ids = tuple(map(str, listed)) if isinstance(listed, list) else ()
    return AuditEntry(
        at=at,
        ids=ids,
        id_count=_number(given, "id_count") or len(ids),
        shard=_number(given, "shard"),
        jobs=_number(given, "jobs"),
        **{name: str(given.get(name, "")) for name in TEXTS},
    )


def _number(given: Mapping[str, Any], name: str) -> int | None:
    found = given.get(name)
    return found if isinstance(found, int) else None
