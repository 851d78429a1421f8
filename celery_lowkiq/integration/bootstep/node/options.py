"""What the node process takes from the worker at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery import Celery
from celery.worker import state


@dataclass
class NodeLimits:
    """``engine.RunLimits`` of the worker."""

    time_limit: float | None
    soft_time_limit: float | None
    max_tasks_per_child: int | None
    max_memory_per_child: int | None

    @classmethod
    def of(cls, worker: Any) -> NodeLimits:
        """Those of Celery's worker."""
        return cls(**{one.name: getattr(worker, one.name, None) for one in fields(cls)})


@dataclass(frozen=True)
class NodeOptions:
    """Options of the worker, and its state at the start of the node process."""

    #: ``module:variable``.
    app: str
    hostname: str
    #: -c.
    concurrency: int
    served: frozenset[str]
    disable_rate_limits: bool
    limits: NodeLimits
    colorize: bool | None
    is_quiet: bool = False
    #: :func:`.app_reference.modules_of`, and of tasks that were registered after the start.
    modules: tuple[str, ...] = ()
    #: Settings that the command line or signals have changed.
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: :func:`task_limits` by queue.
    task_limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Whether events are sent, and which groups.
    events: tuple[bool, frozenset[str]] = (False, frozenset())
    revoked: tuple[str, ...] = ()
    revoked_stamps: Mapping[str, Any] = field(default_factory=dict)


def changed_settings(app: Celery) -> dict[str, Any]:
    """Return the settings that were changed after the app was made, as far as they are plain values."""
    return {name: value for name, value in dict(app.conf.changes or {}).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (str, bytes, bool, int, float)


def task_limits(task: Any) -> dict[str, Any]:
    """Return the attributes of a task that remote control may have changed."""
    return {name: getattr(task, name) for name in ("rate_limit", "time_limit", "soft_time_limit")}


def revoked_calls() -> dict[str, Any]:
    """Return the fields of NodeOptions about revoked calls."""
    stamps = {name: list(values) for name, values in state.revoked_stamps.items()}
    return {"revoked": tuple(state.revoked), "revoked_stamps": stamps}
