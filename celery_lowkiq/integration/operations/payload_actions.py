"""Actions on one payload of a waiting or dead job."""

from __future__ import annotations

from typing import Any

from celery_lowkiq.rules.errors import InvalidCall, LowkiqError
from celery_lowkiq.rules.redaction import MASK
from celery_lowkiq.store.scripts.progress import Progress

from .action_parts import DEAD_PAYLOAD, MARK, PAYLOAD, VALUE, Action, Target
from .json_records import mark_of
from .queue import OrderedQueue

#: Payloads of a job that are searched for a mark, those with the smallest scores.
SEARCHED = 1000
#: Characters of a payload in the audit log.
SHOWN = 200


class PayloadGone(LowkiqError):
    """The job has no such payload any more."""


def _payload(queue: OrderedQueue, target: Target, *, dead: bool = False) -> bytes:
    """The payload with the target's mark. Raises PayloadGone."""
    places = queue.raw().job(target.ids[0], payload_limit=SEARCHED)
    job = places.dead if dead else places.waiting
    for payload in job.payloads if job else ():
        if mark_of(payload) == target.values[MARK.name]:
            return bytes(payload.value)
    there = "is not dead" if dead else "does not wait"
    raise PayloadGone(f"the job {there} any more, or has no such payload any more. Nothing was changed")


def _delete(queue: OrderedQueue, target: Target, _: Progress | None) -> int:
    return int(queue.raw().delete_payload(target.ids[0], _payload(queue, target)))


def payload_change(queue: OrderedQueue, action: Action, target: Target) -> str:
    """What the action changes in a payload, with masks, for the audit log. Raises StoreError."""
    try:
        old = _payload(queue, target, dead=action.scope is DEAD_PAYLOAD)
    except PayloadGone:
        return ""
    shown = queue.shown_bytes(old)[:SHOWN]
    if VALUE.name not in target.values:
        return shown
    return f"{shown} -> {queue.shown_value(target.values[VALUE.name])[:SHOWN]}"


def _new(queue: OrderedQueue, target: Target) -> Any:
    """The new payload. Raises InvalidCall for one with a mask: the secret would be lost."""
    value = target.values[VALUE.name]
    if queue.has_mask(value):
        raise InvalidCall(
            f"{VALUE.name} is invalid: expected a payload without {MASK!r}, which stands for a secret that "
            "was not shown. Read the job without masks, and edit that. Nothing was changed"
        )
    return value


def _edit(queue: OrderedQueue, target: Target, _: Progress | None) -> int:
    new = _new(queue, target)
    old = _payload(queue, target)
    return int(queue.raw().edit_payload(target.ids[0], old, new))


def _delete_dead(queue: OrderedQueue, target: Target, _: Progress | None) -> int:
    return int(queue.raw().delete_dead_payload(target.ids[0], _payload(queue, target, dead=True)))


def _edit_dead(queue: OrderedQueue, target: Target, _: Progress | None) -> int:
    new = _new(queue, target)
    old = _payload(queue, target, dead=True)
    return int(queue.raw().edit_dead_payload(target.ids[0], old, new))


DELETIONS = (
    Action(
        "delete_payload",
        PAYLOAD,
        "Delete payload",
        "This payload is deleted; its calls end as REVOKED. The other payloads of the job stay.",
        call=_delete,
    ),
    Action(
        "delete_dead_payload",
        DEAD_PAYLOAD,
        "Delete payload",
        "This dead payload is deleted. If it was the last dead one of an id that it held, the id goes on.",
        call=_delete_dead,
    ),
)
EDITS = (
    Action(
        "edit_payload",
        PAYLOAD,
        "Save",
        "This payload is replaced and keeps its score; the calls of the old one end as REVOKED.",
        call=_edit,
        parameters=(VALUE,),
    ),
    Action(
        "edit_dead_payload",
        DEAD_PAYLOAD,
        "Save",
        "This dead payload is replaced and keeps its score. Requeue the job to run it.",
        call=_edit_dead,
        parameters=(VALUE,),
    ),
)
