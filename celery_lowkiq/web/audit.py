"""Who changed what: a line in the log ``celery_lowkiq.audit`` as each change begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from celery_lowkiq.rules.loggers import audit_logger as logger

#: So many ids stand in a line.
SHOWN_IDS = 5


@dataclass(frozen=True)
class Change:
    """A change that somebody asked for. Of ``ids`` a line shows the first few."""

    user: str
    address: str
    action: str
    queue: str
    ids: tuple[str, ...] = ()
    shard: int | None = None


def audit(change: Change, state: str, count: int | None = None, error: str = "") -> None:
    """One line. Everything a stranger may choose is quoted, so that it cannot forge another line."""
    shown = ", ".join(map(ascii, change.ids[:SHOWN_IDS]))
    more = f", ... {len(change.ids)} in all" if len(change.ids) > SHOWN_IDS else ""
    parts = [f"{change.action} {state}: user={change.user!a} from={change.address} queue={change.queue!a}"]
    parts += [f"ids=[{shown}{more}]"] if change.ids else []
    parts += [f"shard={change.shard}"] if change.shard is not None else []
    parts += [f"jobs={count}"] if count is not None else []
    parts += [f"error={error!a}"] if error else []
    logger.info(" ".join(parts))
