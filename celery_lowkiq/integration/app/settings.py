"""Settings: names, defaults and what is allowed, in one table."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery import Celery
from celery.app import utils
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.rules import schedulers, splitters
from celery_lowkiq.rules.errors import ConfigurationError

from .tracebacks import format_traceback

PREFIX = "lowkiq_"
#: A payload may never be larger (bytes): a claim takes about so much at a time.
LARGEST_PAYLOAD = 1024 * 1024

#: Of these no message shows the value.
SECRETS = ("url", "redis_options", "web_auth")

_MISSING = object()

# As Celery masks the broker's URL in `inspect conf` and `report`.
_masking: Any = utils
_masking.HIDDEN_SETTINGS = re.compile(
    f"{_masking.HIDDEN_SETTINGS.pattern}|{PREFIX}({'|'.join(SECRETS)})", re.IGNORECASE
)

SCHEDULERS: dict[str, Any] = {
    "lag": schedulers.lag,
    "seq": schedulers.seq,
    "weighted": schedulers.weighted,
}
SPLITTERS: dict[str, Any] = {
    "lease": splitters.lease_splitter,
    "default": splitters.default_splitter,
    "by_node": splitters.by_node_splitter,
}


def format_message(error: BaseException) -> str:
    """An error without the way to it: ``lowkiq_format_error = "message"``."""
    return f"{type(error).__name__}: {error}"


def _text_to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _bytes_to_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _silent(error: BaseException) -> None:
    """The default of last_words: Celery's log says it already."""


@dataclass(frozen=True)
class Setting:
    """One setting: its default, what it may be in words, and how a value is read (ValueError refuses it)."""

    default: Any
    allowed: str
    read: Callable[[Any], Any]


def _number(low: float, high: float, whole: bool = False) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ValueError(value)
        if not low <= value <= high:
            raise ValueError(value)
        return value

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(value)
        return str(value)

    return read


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(value)
    return dict(value)


def _weights(value: Any) -> dict[str, float]:
    """A queue that could be drawn never, or always, would be no weight."""
    return {_text(name): _number(0.001, 1000)(weight) for name, weight in _mapping(value).items()}


def _function(named: Mapping[str, Any] | None = None) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = (named or {}).get(value) or _import(value)
        if not callable(value):
            raise ValueError(value)
        return value

    return read


def _import(path: str) -> Any:
    try:
        return symbol_by_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be imported: {error}") from error


def _functions(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise ValueError(value)
    return tuple(_function()(entry) for entry in value)


_FUNCTION = "a function, or the dotted path of one"

SETTINGS: dict[str, Setting] = {
    "url": Setting(None, "the URL of a Redis; None takes broker_url", _optional(_text)),
    "redis_options": Setting({}, "a dict of redis-py connection arguments", _mapping),
    "client_pool_size": Setting(5, "a whole number from 1 to 1000", _number(1, 1000, whole=True)),
    "pool_timeout": Setting(5.0, "seconds from 0.1 to 600", _number(0.1, 600)),
    "poll_interval": Setting(1.0, "seconds from 0.01 to 3600", _number(0.01, 3600)),
    "lease_seconds": Setting(10.0, "seconds from 0.5 to 3600", _number(0.5, 3600)),
    "shutdown_timeout": Setting(
        None, "seconds from 0 to 86400; None waits for as long as it takes", _optional(_number(0, 86400))
    ),
    "exclusion": Setting("cooperative", "'cooperative' or 'strict'", _one_of("cooperative", "strict")),
    "lanes": Setting(
        None, "a whole number from 1 to 1000; None takes -c", _optional(_number(1, 1000, whole=True))
    ),
    "window": Setting(50, "a whole number from 1 to 1000", _number(1, 1000, whole=True)),
    "scheduler": Setting(
        None,
        f"'lag', 'seq', 'weighted', or {_FUNCTION} that makes a scheduler; None takes 'weighted' with "
        "queue weights, else 'lag'",
        _optional(_function(SCHEDULERS)),
    ),
    "queue_weights": Setting({}, "a dict of queue names to numbers from 0.001 to 1000", _weights),
    "splitter": Setting("lease", f"'lease', 'default', 'by_node', or {_FUNCTION}", _function(SPLITTERS)),
    "number_of_nodes": Setting(
        None,
        "a whole number from 1; None takes LOWKIQ_NUMBER_OF_NODES",
        _optional(_number(1, 4096, whole=True)),
    ),
    "node_number": Setting(
        None, "a whole number from 0; None takes LOWKIQ_NODE_NUMBER", _optional(_number(0, 4095, whole=True))
    ),
    "priority_max_wait": Setting(60.0, "seconds from 0 to 86400", _number(0, 86400)),
    "server_middlewares": Setting((), f"a list; each entry {_FUNCTION}", _functions),
    "client_middlewares": Setting((), f"a list; each entry {_FUNCTION}", _functions),
    "push_durability": Setting(
        "fast", "'fast', 'replicated' or 'fsynced'", _one_of("fast", "replicated", "fsynced")
    ),
    "push_replicas": Setting(1, "a whole number from 1 to 100", _number(1, 100, whole=True)),
    "message_score": Setting("arrival", "'arrival' or 'sent'", _one_of("arrival", "sent")),
    "track_calls": Setting(False, "True or False", _truth),
    "track_ttl": Setting(
        7 * 86400, "seconds, a whole number from 60 to 31536000", _number(60, 31536000, whole=True)
    ),
    "serializer": Setting("json", "the name of a kombu serializer", _text),
    "max_payload_bytes": Setting(
        64 * 1024, f"a whole number from 1 to {LARGEST_PAYLOAD}", _number(1, LARGEST_PAYLOAD, whole=True)
    ),
    "format_error": Setting(
        format_traceback,
        f"'traceback', 'message', or {_FUNCTION}: exception to text",
        _function({"traceback": format_traceback, "message": format_message}),
    ),
    "dump_error": Setting(_text_to_bytes, f"{_FUNCTION}: text to bytes", _function()),
    "load_error": Setting(_bytes_to_text, f"{_FUNCTION}: bytes to text", _function()),
    "log_failures": Setting("first", "'first', 'all' or 'death'", _one_of("first", "all", "death")),
    "metrics_port": Setting(
        None,
        "a port from 0 (any free one) to 65535; None for no metrics",
        _optional(_number(0, 65535, whole=True)),
    ),
    "metrics_host": Setting("127.0.0.1", "an address or a host's name", _text),
    "web_auth": Setting(None, "'user:password'; None takes LOWKIQ_WEB_AUTH", _optional(_text)),
    "web_user_header": Setting(None, "the name of a header", _optional(_text)),
    "web_read_only": Setting(False, "True or False", _truth),
    "web_unpickle": Setting(False, "True or False", _truth),
    "last_words": Setting(_silent, f"{_FUNCTION}: exception to None", _function()),
}


@dataclass(frozen=True)
class Settings:
    """The settings of an app, read and checked; DESIGN and docs/settings.md say what each is for."""

    url: str | None = field(repr=False)
    redis_options: dict[str, Any] = field(repr=False)
    client_pool_size: int
    pool_timeout: float
    poll_interval: float
    lease_seconds: float
    shutdown_timeout: float | None
    exclusion: str
    lanes: int | None
    window: int
    scheduler: Callable[[], schedulers.Scheduler]
    queue_weights: dict[str, float]
    splitter: splitters.Splitter
    number_of_nodes: int | None
    node_number: int | None
    priority_max_wait: float
    server_middlewares: tuple[Any, ...]
    client_middlewares: tuple[Any, ...]
    push_durability: str
    push_replicas: int
    message_score: str
    track_calls: bool
    track_ttl: int
    serializer: str
    max_payload_bytes: int
    format_error: Callable[[BaseException], str]
    dump_error: Callable[[str], bytes]
    load_error: Callable[[bytes], str]
    log_failures: str
    metrics_port: int | None
    metrics_host: str
    web_auth: str | None = field(repr=False)
    web_user_header: str | None
    web_read_only: bool
    web_unpickle: bool
    last_words: Callable[[BaseException], Any]

    def make_splitter(self) -> splitters.Splitter:
        """Raises ConfigurationError when ``by_node`` does not know its numbers."""
        if self.splitter is not SPLITTERS["by_node"]:
            return self.splitter
        nodes = _or_environment("number_of_nodes", self.number_of_nodes)
        return splitters.by_node_splitter(nodes, _or_environment("node_number", self.node_number))


def _or_environment(name: str, value: int | None) -> int:
    if value is not None:
        return value
    variable = (PREFIX + name).upper()
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise ConfigurationError(
            f"{variable}={text!r}: lowkiq_splitter='by_node' needs a whole number there, or {PREFIX + name}"
        )
    return int(text)


def read_settings(app: Celery) -> Settings:
    """Raises ConfigurationError, which names the setting, the value, and what is allowed."""
    _refuse_unknown(app)
    values = {name: _value(app, name, setting) for name, setting in SETTINGS.items()}
    return Settings(**{**values, "scheduler": _scheduler(values["scheduler"], values["queue_weights"])})


def _scheduler(given: Any, weights: dict[str, float]) -> Callable[[], schedulers.Scheduler]:
    if given is schedulers.weighted or (given is None and weights):
        return partial(schedulers.weighted, weights)
    return given or schedulers.lag


def read_setting(app: Celery, name: str) -> Any:
    """One setting, without its prefix. Raises ConfigurationError."""
    return _value(app, name, SETTINGS[name])


def _value(app: Celery, name: str, setting: Setting) -> Any:
    value = app.conf.get(PREFIX + name, setting.default)
    try:
        return setting.read(value)
    except ValueError as error:
        shown = "its value" if name in SECRETS else repr(value)
        why = f" ({error})" if str(error) not in (str(value), "") and name not in SECRETS else ""
        raise ConfigurationError(
            f"{PREFIX}{name}: {shown} is not allowed{why}; allowed: {setting.allowed}"
        ) from None


def _refuse_unknown(app: Celery) -> None:
    for name, written in sorted(_given_names(app).items()):
        if name in SETTINGS:
            if app.conf.get(PREFIX + name, _MISSING) is _MISSING:
                raise ConfigurationError(f"setting {written!r} has no effect: write {_spelling(app, name)}")
        else:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = (
                f"did you mean {PREFIX + close[0]!r}?"
                if close
                else f"known are {', '.join(sorted(SETTINGS))}"
            )
            raise ConfigurationError(f"unknown setting {PREFIX + name!r}: {hint}")


def _spelling(app: Celery, name: str) -> str:
    """How the app's configuration has to write a setting."""
    namespace = getattr(app, "namespace", None)
    plain = PREFIX + name
    return f"{plain!r}, or {f'{namespace}_{plain.upper()}'!r}" if namespace else repr(plain)


def _given_names(app: Celery) -> dict[str, str]:
    """All lowkiq settings that were given: names in lower case, without prefix and the app's namespace, and
    how they were written.
    """
    namespace = (getattr(app, "namespace", None) or "").lower()
    found = {}
    for written in (str(key) for mapping in (app.conf.maps or ()) for key in mapping):
        name = written.lower()
        if namespace:
            name = name.removeprefix(f"{namespace}_")
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] = written
    return found
