"""The context of a Celery app, and its ordered tasks."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from celery import Celery
from celery._state import get_current_worker_task
from celery.signals import celeryd_init, import_modules

from celery_lowkiq.integration.call_threads import CallThreads
from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.integration.gate import Gate, Signing
from celery_lowkiq.integration.redis_params import check_arguments, key_prefix, parameters
from celery_lowkiq.integration.settings import LARGEST_PAYLOAD, Settings, read_settings
from celery_lowkiq.rules.basics import cached_property, package_logger, worker_logger
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.models import QueueSpec, StoredRecord
from celery_lowkiq.rules.text import did_you_mean, full_names, listed_names
from celery_lowkiq.store.client import Client, check_url
from celery_lowkiq.store.connect import connect, connect_cluster
from celery_lowkiq.store.durability import Durability, Level
from celery_lowkiq.store.exchange import SingleServer
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.trackers import TrackerStore
from celery_lowkiq.worker.forks import ProcessLock

# Registry: the ordered tasks of an app, by the names of their queues.

#: By name, so that only a worker imports it, after anything that instruments Celery's worker.
BOOTSTEP = "celery_lowkiq.integration.bootstep.step:OrderedQueues"
_OPTIONS = "_lowkiq_worker_options"
LATE = (
    "this worker does not serve the ordered queues (%s), because their tasks were registered after its "
    "start: calls wait for another worker. Import their modules at the start (imports, include)"
)


class OrderedTaskMarker:
    """Base class by which packages below ``task`` recognise an ordered task."""

    queue_name: str | None


def ordered_tasks(app: Celery) -> dict[str, Any]:
    """Find the ordered tasks of an app by queue name, sorted, so that all nodes deal shards in one order.

    Raises ConfigurationError when two tasks share a queue.
    """
    by_queue: dict[str, Any] = {}
    for _, task in sorted(app.tasks.items()):
        if isinstance(task, OrderedTaskMarker):
            name = task.queue_name or task.name
            if name in by_queue:
                raise ConfigurationError(
                    f"queue_name={name!r} belongs to {by_queue[name].name} and to {task.name}: "
                    "every ordered task needs a queue of its own"
                )
            by_queue[name] = task
    return dict(sorted(by_queue.items()))


def read_queue_name(given: str, known: Collection[str]) -> str:
    """Return the ordered queue with the given name or unambiguous last part of a name.

    Raises InvalidCall, which suggests names.
    """
    candidates = full_names(given, known)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        expected, advice = "the name of one ordered queue", f"Several end so: {listed_names(candidates)}"
    else:
        expected = "an ordered queue of the app"
        advice = (
            did_you_mean(given, known) or f"The app has {listed_names(known) or 'none: does -A name it?'}"
        )
    raise InvalidCall(f"queue={given[:100]!r} is invalid: expected {expected}. {advice}")


def add_step(app: Celery, queue: str) -> None:
    """Add the bootstep that serves ordered queues to the app's workers.

    In a running worker that started without the step, log a warning: it cannot serve the queue any more.
    """
    steps = app.steps["consumer"]
    if BOOTSTEP not in steps and get_current_worker_task() is not None:
        worker_logger.warning(LATE, queue)
    steps.add(BOOTSTEP)


def worker_options(app: Celery) -> dict[str, Any]:
    """Return the command line options of the app's worker."""
    options: dict[str, Any] = app.__dict__.get(_OPTIONS, {})
    return options


@celeryd_init.connect(weak=False)
def _remember_options(instance: Any = None, options: Any = None, **_: Any) -> None:
    # Celery exposes -Q and -X only by this signal, which it sends before it imports the bootstep.
    instance.app.__dict__[_OPTIONS] = dict(options or {})


@import_modules.connect(weak=False)
def _prepare_worker(sender: Any = None, **_: Any) -> None:
    # The first ordered task of an app may be registered while its worker runs.
    sender.steps["consumer"].add(BOOTSTEP)


# The context of a Celery app in this process: settings, codecs, and one store.

#: Timeouts in s of the check of a worker that starts.
CHECK_TIMEOUTS = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}


class AppContext:
    """The objects that an app's ordered tasks share in this process."""

    def __init__(self, app: Celery) -> None:
        self.settings: Settings = read_settings(app)
        serializer, accept = self.settings.serializer, app.conf.accept_content
        self.codec: Codec = Codec(serializer, accept, self.settings.max_payload_bytes)
        in_order = Codec(serializer, accept, self.settings.max_payload_bytes, in_order=True)
        #: What writes payloads, by whether equal ones merge: then they have one canonical form.
        self.codecs: dict[bool, Codec] = {True: self.codec, False: in_order}
        #: For call records: links and headers may be larger than the limit on payloads.
        self.record_codec: Codec = Codec(serializer, accept, LARGEST_PAYLOAD, in_order=True)
        self.signing: Signing = Signing(self.settings.signing, self.settings.signing_keys)
        self.pid: int = os.getpid()
        self._app = app
        #: For calls from asyncio.
        self.call_threads: CallThreads = CallThreads(
            self.settings.client_pool_size, self.settings.pool_timeout
        )

    def gate(self, queue: str) -> Gate:
        """Return what decodes the stored payloads and records of a queue."""
        return Gate(queue, self.codec, self.record_codec, self.signing, self.settings.links)

    @cached_property
    def connection(self) -> Any:
        """An unconnected broker connection, which Celery reads the connection's error types from."""
        return self._app.connection_for_write()

    @cached_property
    def store(self) -> RedisStore:
        """The store of calls, listings and actions, not connected yet. Raises ConfigurationError."""
        store = self.open_store(self.settings.client_pool_size)
        store.pusher.dropped = self._dropped
        store.pusher.signer = None if self.signing.mode == "off" else self.signing
        return store

    def redis_parameters(self) -> dict[str, Any]:
        """Return the arguments of each connection to the store. Raises ConfigurationError."""
        return parameters(self._app, self.settings)

    def key_prefix(self) -> str:
        """Return the text in front of all keys and channels. Raises ConfigurationError."""
        return key_prefix(self._app, self.settings)

    def open_store(self, connections: int) -> RedisStore:
        """Return a new store with at most ``connections`` connections. Raises ConfigurationError."""
        found = self.redis_parameters()
        is_cluster = "cluster" in found
        opened: Any = connect_cluster if is_cluster else connect
        client = opened(found, pool_size=connections, pool_timeout=self.settings.pool_timeout)
        check_arguments(client if is_cluster else client.connection_pool)
        durability = Durability(Level(self.settings.push_durability), self.settings.push_replicas)
        prefix, lease_seconds = self.key_prefix(), self.settings.lease_seconds
        return RedisStore(client, durability, lease_seconds=lease_seconds, prefix=prefix)

    def check_server(self, queues: Sequence[QueueSpec]) -> None:
        """Check that the URL of one server names one that stores the queues. Raises ConfigurationError.

        What does not answer soon passes; so does a node of a cluster that has all slots of the queues.
        """
        found = self.redis_parameters()
        if "cluster" in found or "sentinels" in found:
            return
        client = connect(found | CHECK_TIMEOUTS, pool_size=1, pool_timeout=1)
        check_arguments(client.connection_pool)
        checked = Client(SingleServer(client))
        checked.prefix = self.key_prefix()
        try:
            check_url(checked, queues)
        finally:
            client.connection_pool.disconnect()

    def _dropped(self, queue: QueueSpec, calls: Sequence[StoredRecord]) -> None:
        """End the calls that a push dropped. The push has succeeded, so errors are only logged."""
        try:
            ordered_tasks(self._app)[queue.name]._finish_dropped(calls)
        except Exception:
            package_logger.exception("could not end %d dropped calls of %r", len(calls), queue.name)

    def check_serializer(self, name: str) -> None:
        """Check that the app can decode a serializer's payloads. Raises ConfigurationError."""
        Codec(name, self._app.conf.accept_content, LARGEST_PAYLOAD)

    @property
    def tracker_store(self) -> TrackerStore:
        return TrackerStore(self.store.client)


_contexts_lock = ProcessLock()
#: Contexts of the process that forked this one. They are never deleted: that would unregister their
#: connections from the event loops of that process, whose poll objects a fork shares.
_inherited: list[AppContext] = []


def context_of(app: Celery) -> AppContext:
    """Return the app's context. A forked child gets its own, because connections cannot be shared.

    Raises ConfigurationError for unknown or invalid settings.
    """
    context: AppContext | None = app.__dict__.get("_lowkiq_context")
    if context is None or context.pid != os.getpid():
        with _contexts_lock:
            context = app.__dict__.get("_lowkiq_context")
            if context is None or context.pid != os.getpid():
                if context is not None:
                    _inherited.append(context)
                context = AppContext(app)
                app.__dict__["_lowkiq_context"] = context
    return context
