"""Writes results of successes to Celery's Redis backend, many at once, as the backend writes each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery.app import base as apps
from celery.app.task import Context
from celery.backends import base, redis
from celery.states import SUCCESS
from kombu import serialization
from kombu.utils import json

from celery_lowkiq.rules.functions import is_defined_in
from celery_lowkiq.store.scripts.exchange import transact

#: Methods that store a result, and are not called for one that is written here.
REPLACED = (
    "mark_as_done",
    "store_result",
    "_store_result",
    "_get_result_meta",
    "_get_task_meta_for",
    "get",
    "_set_with_state",
    "set",
    "_set",
    "encode",
    "_encode",
)
#: What is stored of a success in no group that no task has called, beside the id.
PLAIN_META = {"status", "result", "traceback", "children", "date_done"}
#: Writes what kombu's "json" writes, which makes an encoder for each value.
_encoder = json.JSONEncoder()
_kombu: Any = serialization
#: Maximum size (bytes) of a result that is written with others.
MAX_SIZE = 65_536


class EncodedResult(NamedTuple):
    """A result as it is stored and published."""

    key: bytes
    value: Any


def writes_together(backend: Any) -> bool:
    """Whether the backend is Celery's own and unpatched, so that :func:`write` does what it would do."""
    now = getattr(getattr(backend, "app", None), "now", None)
    return (
        not getattr(backend, "always_retry", True)
        and type(backend) is redis.RedisBackend
        and all(is_defined_in(getattr(backend, name), base, redis) for name in REPLACED)
        and is_defined_in(now, apps)
    )


def encode(
    backend: Any, task_id: str, result: Any, context: Context, common: dict[str, Any]
) -> EncodedResult | None:
    """Encode the result of a success; None for a large one. Raises errors of the serializer.

    ``common``: what the results of a window have in common; filled by the first one.
    """
    meta = _meta(backend, backend.encode_result(result, SUCCESS), context, common)
    meta["task_id"] = task_id
    value = _encoder.encode(meta) if _writes_json(backend) else backend.encode(meta)
    if len(value) > MAX_SIZE:
        return None
    return EncodedResult(backend.get_key_for_task(task_id), value)


def _meta(backend: Any, result: Any, context: Context, common: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored of a result beside its id; Celery makes it for the first one of a window."""
    if common and not context.group and not context.parent_id:
        now = datetime.now(backend.app.timezone).isoformat()
        children = backend.current_task_children(context)
        return {**common, "result": result, "children": children, "date_done": now}
    meta: dict[str, Any] = backend._get_result_meta(
        result=result, state=SUCCESS, traceback=None, request=context
    )
    if meta.keys() == PLAIN_META:
        common.update(meta)
    return meta


def _writes_json(backend: Any) -> bool:
    is_json = backend.serializer == "json" and not getattr(backend, "compression", None)
    return is_json and _kombu.registry._encoders["json"].encoder is json.dumps


def write(backend: Any, results: Sequence[EncodedResult], retry: bool) -> None:
    """Write results, all or none, and publish them. The first success of a call is final.

    ``retry``: lost connections are tried again by the backend's own policy. Raises the backend's errors.
    """
    metas = backend.mget([result.key for result in results])
    unknown: dict[bytes, Any] = {}
    for (key, value), meta in zip(results, metas, strict=True):
        if not meta or backend.decode_result(meta)["status"] != SUCCESS:
            unknown.setdefault(key, value)
    if not unknown:
        return
    if retry:
        backend.ensure(_set_all, (backend, unknown))
    else:
        _set_all(backend, unknown)


def _set_all(backend: Any, values: Mapping[bytes, Any]) -> None:
    expires = ("EX", int(backend.expires)) if backend.expires else ()
    commands: list[tuple[Any, ...]] = []
    for key, value in values.items():
        commands += [("SET", key, value, *expires), ("PUBLISH", key, value)]
    if transact(backend.client, commands):
        return
    with backend.client.pipeline() as pipe:
        for command in commands:
            pipe.execute_command(*command)
        pipe.execute()
