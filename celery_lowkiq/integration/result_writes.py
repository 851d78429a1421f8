"""Results of light runs, held back and written together to the result backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery.app import base as apps
from celery.app.task import Context
from celery.backends import base, redis
from celery.states import SUCCESS
from kombu import serialization
from kombu.utils import json

from celery_lowkiq.integration.decisions import return_batch
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.rules.basics import is_defined_in
from celery_lowkiq.rules.models import Batch, Settlement
from celery_lowkiq.store.exchange import transact

# Writes results of successes to Celery's Redis backend, many at once, as the backend writes each of them.

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
#: Stored fields, beside the id, of a success in no group that no task has called.
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
    """True if the backend is Celery's own and unpatched, so that :func:`write` does the same."""
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

    ``common``: fields that the results of a window share, filled by the first one; of a call in a group or of
    another task, an empty dict of its own.
    """
    meta = _meta(backend, backend.encode_result(result, SUCCESS), context, common)
    meta["task_id"] = task_id
    value = _encoder.encode(meta) if _writes_json(backend) else backend.encode(meta)
    if len(value) > MAX_SIZE:
        return None
    return EncodedResult(backend.get_key_for_task(task_id), value)


def _meta(backend: Any, result: Any, context: Context, common: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored of a result beside its id; Celery makes it for the first one of a window."""
    if common:
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


# The results of a lane's plain runs that are written together, before their jobs are settled.

#: Seconds in which runs are repeated whose results could not be written; the rest of them run again.
MAX_REPEATING = 5.0


class HeldResult(NamedTuple):
    """A result to write, and what becomes of its run then."""

    #: Monotonic s.
    held_at: float
    encoded: EncodedResult
    batch: Batch
    #: The settlements once the result is written.
    done: tuple[Settlement, ...]
    #: Repeats the run through Celery's tracer, and returns the settlements, when it cannot be written.
    repeat: Callable[[], tuple[Settlement, ...]]


class ResultBuffer:
    """Filled and emptied by one lane; :meth:`write_late` is called from another thread."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._is_suitable = False
        self._held: list[HeldResult] = []
        #: Fields that the results share, for :func:`encode`.
        self.common: dict[str, Any] = {}
        #: How many of these are written.
        self._written = 0
        #: True if :meth:`write_late` has failed: the lane meets the error, and handles it.
        self._has_failed = False
        #: Locked while results are written, or taken out.
        self._writing = threading.Lock()

    def accepts(self, backend: Any) -> bool:
        """True if results for this backend can be added."""
        if backend is not self._backend and not self._held:
            self._backend, self._is_suitable = backend, writes_together(backend)
            self.common = {}
        return self._is_suitable and backend is self._backend

    def add(self, held: HeldResult) -> None:
        """Hold a result back."""
        self._held.append(held)

    def take(self) -> HeldResult | None:
        """Take the only held result, which the lane of this child process writes; None without one."""
        return self._held.pop() if self._held else None

    def write_late(self, before: float) -> None:
        """Write what there is, if the first of it was added ``before`` this monotonic s."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            held = self._held[self._written :]
            if held and not self._has_failed and held[0].held_at < before:
                write(self._backend, [one.encoded for one in held], retry=False)
                self._written += len(held)
        except Exception:  # noqa: BLE001 - the lane tries again
            self._has_failed = True
        finally:
            self._writing.release()

    def flush(self) -> tuple[Settlement, ...]:
        """Write all results. Returns the settlements of their jobs."""
        if not self._held:
            return ()
        with self._writing:
            held, written = self._held, self._written
            self._held, self._written, self._has_failed = [], 0, False
            self.common = {}
            try:
                if written < len(held):
                    write(self._backend, [one.encoded for one in held[written:]], retry=True)
                written = len(held)
            except Exception as error:  # noqa: BLE001 - each run that is repeated meets its own
                logger.debug("results are written one by one, because together failed: %s", error)
        done = [settlement for one in held[:written] for settlement in one.done]
        return (*done, *_repeat(held[written:]))


def _repeat(unwritten: Sequence[HeldResult]) -> list[Settlement]:
    settlements: list[Settlement] = []
    until = time.monotonic() + MAX_REPEATING
    for number, held in enumerate(unwritten):
        if time.monotonic() > until:
            logger.warning(
                "%d jobs of %s run again, because their results could not be written in time",
                len(unwritten) - number,
                held.batch.queue.name,
            )
            return settlements + [v for one in unwritten[number:] for v in return_batch(one.batch)]
        settlements += held.repeat()
    return settlements


# Writes results that wait behind a long run of their lane.

#: Results that have waited for this many s are written while their lane runs something else.
MAX_DELAY = 0.03


class ResultBuffers:
    """The buffers of all lanes."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._all: list[ResultBuffer] = []

    @property
    def own(self) -> ResultBuffer:
        """The buffer of the calling lane."""
        buffer: ResultBuffer | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = ResultBuffer()
            self._all.append(buffer)
        return buffer

    def write_late(self) -> None:
        """Write the results of other lanes that wait for long."""
        before = time.monotonic() - MAX_DELAY
        for buffer in self._all:
            buffer.write_late(before)
