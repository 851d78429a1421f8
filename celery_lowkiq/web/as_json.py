"""Values of the package as JSON has them; numbers that JSON lacks become null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from celery_lowkiq.integration.operations.queue import ShownDeadJob, ShownJob, ShownPayload
from celery_lowkiq.rules.diagnosis import Why
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.reports import NodeReport, ShardReport
from celery_lowkiq.rules.text import within_lists
from celery_lowkiq.rules.views import Stats

from . import show
from .actions import Target
from .operations import Operation
from .params import field


def shard(found: ShardReport) -> dict[str, Any]:
    """A shard with its counts and its owner."""
    times = {"since": found.since, "paused_since": found.paused_since}
    return {
        "index": found.index,
        "stats": stats(found.stats),
        "owner": found.owner,
        "alive": found.alive,
        "running": running(found.running),
        **times,
    }


def number(value: float) -> float | None:
    """Infinity is no JSON."""
    return value if math.isfinite(value) else None


def plain(value: Any) -> dict[str, Any]:
    """A dataclass of numbers and texts."""
    return {name: number(v) if isinstance(v, float) else v for name, v in asdict(value).items()}


def stats(found: Stats) -> dict[str, Any]:
    return plain(found)


def queue(spec: QueueSpec, found: Stats) -> dict[str, Any]:
    """A queue with its counts."""
    return {"name": spec.name, "shards": spec.shards, "batch_size": spec.batch_size, "stats": stats(found)}


def job(found: ShownJob | ShownDeadJob, load: show.Load | None) -> dict[str, Any]:
    """A job in whatever place. ``error`` and ``payloads`` as the page shows them."""
    shown: dict[str, Any] = {
        "id": found.id,
        "error": found.error,
        "payload_count": found.payload_count,
        "payloads": [payload(one, load) for one in found.payloads],
    }
    if isinstance(found, ShownDeadJob):
        return {**shown, "updated_at": number(found.updated_at)}
    place = {"perform_in": number(found.perform_in), "retry_count": found.retry_count}
    return {**shown, **place, "held": found.held, "priority": found.priority}


def payload(found: ShownPayload, load: show.Load | None) -> dict[str, Any]:
    """``value`` for JSON, ``text`` for all; ``mark`` names it in a change."""
    mark, found = show.mark(found), show.beginning(found)
    size = found.cut_from or len(found.value)
    return {
        "score": number(found.score),
        "mark": mark,
        "value": None if found.cut_from else _value(found.value),
        "text": show.payload_text(found, load),
        "size": size,
        "cut": found.cut_from is not None,
    }


def _value(data: bytes) -> Any:
    try:
        value = json.loads(data, parse_constant=_refuse)
        json.dumps(within_lists(value))
    except (ValueError, RecursionError):
        return None
    return value


def _refuse(name: str) -> Any:
    raise ValueError(name)


def node(found: NodeReport) -> dict[str, Any]:
    """A node with its lanes; shards as ``queue/index``."""
    lanes = [
        {
            "name": lane.name,
            "shards": [str(shard) for shard in lane.shards],
            "shard_count": lane.shard_count,
            "running": running(lane.running),
        }
        for lane in found.lanes
    ]
    return {**plain(found), "queues": list(found.queues), "alive": found.alive, "lanes": lanes}


def why(found: Why) -> dict[str, Any]:
    """The reasons, the main one first."""
    return {"kind": found.kind, "text": found.text, "reasons": [plain(one) for one in found.reasons]}


def running(found: Any) -> dict[str, Any] | None:
    """A batch that runs."""
    if found is None:
        return None
    return {"shard": str(found.shard), "ids": list(found.ids), "count": found.count, "seconds": found.seconds}


def operation(found: Operation) -> dict[str, Any]:
    """A change and how far it is."""
    return {
        "id": found.id,
        "action": found.change.action,
        "queue": found.change.queue,
        "user": found.change.user,
        "state": found.state,
        "count": found.count,
        "total": found.total,
        "began_at": found.began_at,
        "ended_at": found.ended_at,
        "error": found.error,
    }


def target(fields: Mapping[str, Any]) -> Target:
    """What a change is done to. Raises InvalidCall."""
    ids = field(fields, "ids", list, [])
    if not all(isinstance(one, str) for one in ids):
        raise InvalidCall("ids: a list of texts is allowed")
    shard = None if fields.get("shard") is None else field(fields, "shard", int)
    mark = None if fields.get("mark") is None else field(fields, "mark", str)
    value = json.dumps(fields["value"]) if "value" in fields else None
    return Target(tuple(ids), shard, mark, value)
