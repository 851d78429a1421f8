"""Writes results of successes to Celery's Redis backend, many at once, as the backend writes each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery.app.task import Context
from celery.backends import base, redis
from celery.states import SUCCESS

from celery_lowkiq.rules.functions import is_defined_in

#: Methods that store a result, and are not called for one that is written here.
REPLACED = (
    "mark_as_done",
    "store_result",
    "_store_result",
    "_get_task_meta_for",
    "get",
    "_set_with_state",
    "set",
    "_set",
)
#: Maximum size (bytes) of a result that is written with others.
MAX_SIZE = 65_536


class EncodedResult(NamedTuple):
    """A result as it is stored and published."""

    key: bytes
    value: Any


def writes_together(backend: Any) -> bool:
    """Whether the backend is Celery's own and unpatched, so that :func:`write` does what it would do."""
    return (
        not getattr(backend, "always_retry", True)
        and type(backend) is redis.RedisBackend
        and all(is_defined_in(getattr(backend, name), base, redis) for name in REPLACED)
    )


def encode(backend: Any, task_id: str, result: Any, context: Context) -> EncodedResult | None:
    """Encode the result of a success; None for a large one. Raises errors of the serializer."""
    result = backend.encode_result(result, SUCCESS)
    meta = backend._get_result_meta(result=result, state=SUCCESS, traceback=None, request=context)
    meta["task_id"] = task_id
    value = backend.encode(meta)
    if len(value) > MAX_SIZE:
        return None
    return EncodedResult(backend.get_key_for_task(task_id), value)


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
    with backend.client.pipeline() as pipe:
        for key, value in values.items():
            pipe.set(key, value, ex=backend.expires or None)
            pipe.publish(key, value)
        pipe.execute()
