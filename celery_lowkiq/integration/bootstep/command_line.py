"""Queues that a worker serves, by -Q and -X."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from celery import Celery
from celery.exceptions import ImproperlyConfigured

from celery_lowkiq.integration.options import FIXED
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.text import count_of, did_you_mean, full_names, listed

# The queues that a worker serves, in words: the lines of its banner, and one line of its log.

#: Why a queue is not served.
NOT_NAMED, EXCLUDED, CANCELLED = "-Q does not name it", "-X names it", "cancel_consumer"
#: The word of -Q and -X for all ordered queues.
ALL_ORDERED = "lowkiq"
#: Advice to a worker whose -Q names no ordered queue.
NAME_THEM = (
    f"add their names, a pattern, or {ALL_ORDERED} for all of them to -Q; "
    f"add -X {ALL_ORDERED} if other workers serve them"
)
#: Maximum number of queues that the log line, or a line of the banner, names for one reason.
LISTED = 10


@dataclass(frozen=True)
class Service:
    """The ordered queues that a worker serves, and how."""

    #: Declared number of shards of each served queue.
    shards: Mapping[str, int]
    #: Why each of the others is not served.
    reasons: Mapping[str, str] = field(default_factory=dict)
    lanes: int = 0
    exclusion: str = ""
    #: Address of Redis, without user and password.
    store: str = ""

    def banner(self) -> list[str]:
        """Return lines in the form of Celery's banner; none for an app without ordered queues."""
        if not (self.shards or self.reasons):
            return []
        rows = [f"  .> {name:<16} shards={shards}" for name, shards in self.shards.items()]
        if self.shards:
            rows.append(f"  lanes={self.lanes} exclusion={self.exclusion} store={self.store}")
        return ["[ordered queues]", *rows, *(f"  .> not served: {text}" for text in self._not_served())]

    def sentence(self) -> str:
        """Return the same as one line."""
        parts = ["no ordered queue is served"]
        if self.shards:
            queues = listed(
                [f"{name} ({count_of(shards, 'shard')})" for name, shards in self.shards.items()], LISTED
            )
            parts = [
                f"ordered queues are served by {count_of(self.lanes, 'lane')}: {queues}",
                f"exclusion: {self.exclusion}",
                f"store: {self.store}",
            ]
        advice = [NAME_THEM] if self.is_overlooked else []
        return "; ".join([*parts, *(f"not served: {text}" for text in self._not_served()), *advice])

    @property
    def is_overlooked(self) -> bool:
        """True if the worker serves no ordered queue, and its -Q does not name some."""
        return not self.shards and NOT_NAMED in self.reasons.values()

    def _not_served(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(name)
        return [f"{listed(names, LISTED)} ({reason})" for reason, names in by_reason.items()]


# Options of a worker for ordered queues: -Q and -X, and the options that lanes cannot obey.

NO_CHILD = "there is no child to replace"
ENDLESS = "a lane is a thread, which cannot be stopped from outside"
#: Attributes of a worker that Celery's thread pool ignores: the setting of each, and the reason.
WITHOUT_EFFECT = {
    "max_tasks_per_child": ("worker_max_tasks_per_child", NO_CHILD),
    "max_memory_per_child": ("worker_max_memory_per_child", NO_CHILD),
    "time_limit": ("task_time_limit", ENDLESS),
    "soft_time_limit": ("task_soft_time_limit", ENDLESS),
}


def chosen(names: Collection[str], options: Mapping[str, Any]) -> list[str]:
    """Return the queues of ``names`` that the worker's -Q and -X select."""
    include, exclude = _listed(options.get("queues")), _listed(options.get("exclude_queues"))
    return [
        name for name in names if (not include or _selects(include, name)) and not _selects(exclude, name)
    ]


def named(names: Collection[str], options: Mapping[str, Any]) -> list[str]:
    """Return the queues of ``names`` that -Q asks for: by name, by a pattern, or by the word for all."""
    include = _listed(options.get("queues"))
    return [name for name in names if _selects(include, name)]


def reasons(names: Collection[str], options: Mapping[str, Any]) -> dict[str, str]:
    """Return why a worker with these -Q and -X does not serve these queues."""
    include, exclude = _listed(options.get("queues")), _listed(options.get("exclude_queues"))
    return {
        name: EXCLUDED
        if _selects(exclude, name)
        else NOT_NAMED
        if include and not _selects(include, name)
        else CANCELLED
        for name in sorted(names)
    }


def _selects(words: Collection[str], name: str) -> bool:
    """Decide whether a word is the name, a pattern (``*``, ``?``, ``[...]``) of it, or the word for all."""
    return any(word in (name, ALL_ORDERED) or fnmatchcase(name, word) for word in words)


def check_threads(controller: Any, any_process: bool) -> None:
    """Check a worker that serves ordered queues. Raises ImproperlyConfigured for --autoscale.

    Settings without effect only get a warning: other workers of the app may use them. ``any_process``:
    some of its tasks run in child processes, for which they have an effect.
    """
    if controller.autoscale:
        raise ImproperlyConfigured(f"--autoscale is not supported with ordered queues: {FIXED}")
    for name, (setting, why) in WITHOUT_EFFECT.items():
        if getattr(controller, name, None) and not any_process:
            logger.warning("%s has no effect on a thread pool: %s", setting, why)


def warn_unknown_weights(names: Collection[str], weights: Collection[str]) -> None:
    """Warn of names in ``lowkiq_queue_weights`` that are not ordered queues."""
    unknown = sorted(set(weights) - set(names))
    if unknown:
        logger.warning(
            "lowkiq_queue_weights names %s, which is not an ordered queue of this app: its queues are %s",
            ", ".join(unknown),
            ", ".join(sorted(names)),
        )


def warn_unknown_plain(app: Celery, plain: Collection[str]) -> None:
    """Warn of names in ``lowkiq_plain`` that no task of the app has."""
    for name in sorted(set(plain) - set(app.tasks)):
        hint = did_you_mean(name, app.tasks)
        logger.warning("lowkiq_plain names %s, which is not a task of this app. %s", name, hint)


def warn_short_names(app: Celery, names: Collection[str], options: Mapping[str, Any]) -> None:
    """Warn when -Q or -X has only the last part of an ordered queue's name: it selects a broker queue."""
    declared = _declared_broker_queues(app)
    for option in ("queues", "exclude_queues"):
        for given in _listed(options.get(option)):
            ordered = [name for name in full_names(given, names) if name != given]
            if ordered and given not in declared:
                logger.warning(
                    "%s names the broker's queue %s: did you mean the ordered queue %s?",
                    "-Q" if option == "queues" else "-X",
                    given,
                    " or ".join(ordered),
                )


def deselect_from_broker(app: Celery, names: Collection[str], options: Mapping[str, Any]) -> None:
    """Do not consume from the broker words of -Q for the ordered queues, unless task_queues has them.

    Warn of a pattern that matches no ordered queue.
    """
    words = [word for word in _listed(options.get("queues")) if word not in _declared_broker_queues(app)]
    ordered = [word for word in words if word in names or _is_pattern(word)]
    for word in ordered:
        if not any(_selects([word], name) for name in names):
            logger.warning(
                "-Q has %s, which matches no ordered queue: they are %s", word, ", ".join(names) or "none"
            )
    app.amqp.queues.deselect(ordered)


def _is_pattern(word: str) -> bool:
    return word == ALL_ORDERED or any(sign in word for sign in "*?[")


def _declared_broker_queues(app: Celery) -> set[Any]:
    return {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}


def _listed(value: Any) -> list[str]:
    if not value:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    return [str(part).strip() for part in parts]
