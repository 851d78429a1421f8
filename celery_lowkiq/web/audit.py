"""Audit log ``celery_lowkiq.audit``: a line when a change begins, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_lowkiq.rules.loggers import audit_logger as logger

#: Maximum number of ids in a line.
SHOWN_IDS = 5
#: Maximum length of a reason.
MAX_REASON = 200


@dataclass(frozen=True)
class Change:
    """A requested change. A line shows the first few ``ids``."""

    user: str
    address: str
    action: str
    queue: str
    ids: tuple[str, ...] = ()
    shard: int | None = None
    #: Why, in the words of the user; "": none was given.
    reason: str = ""
    #: What the jobs are searched by, with limit and rate.
    filter: Mapping[str, Any] = field(default_factory=dict)


def audit(change: Change, state: str, count: int | None = None, error: str = "") -> None:
    """Log one line. Values from requests are quoted, so that they cannot forge another line."""
    shown = ", ".join(map(ascii, change.ids[:SHOWN_IDS]))
    more = f", ... {len(change.ids)} in all" if len(change.ids) > SHOWN_IDS else ""
    parts = [f"{change.action} {state}: user={change.user!a} from={change.address} queue={change.queue!a}"]
    parts += [f"ids=[{shown}{more}]"] if change.ids else []
    parts += [f"shard={change.shard}"] if change.shard is not None else []
    parts += [f"filter={change.filter!a}"] if change.filter else []
    parts += [f"reason={change.reason!a}"] if change.reason else []
    parts += [f"jobs={count}"] if count is not None else []
    parts += [f"error={error!a}"] if error else []
    logger.info(" ".join(parts))
