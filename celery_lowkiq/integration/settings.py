"""Settings: declared once, with defaults, checks and texts."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any, Literal, get_args

from celery import Celery
from celery.app import utils
from celery.app.utils import Settings as CelerySettings
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.integration.gate import EXPECTED, Mode
from celery_lowkiq.integration.gate import SETTING as KEYS
from celery_lowkiq.integration.gate import read_setting as read_keys_setting
from celery_lowkiq.integration.safe_logging import format_traceback
from celery_lowkiq.rules import claims, shares
from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.redaction import Redactor, redactor_of
from celery_lowkiq.rules.validators import (
    Option,
    Validator,
    boolean,
    is_number,
    matching,
    one_of,
    seconds,
    text,
    whole,
)

# The declaration of a setting as a field of a dataclass.


def setting(
    default: Any, valid: Validator, documentation: str, default_words: str = "", secret: bool = False
) -> Any:
    """A field with its default, its valid values and its row of the documentation."""
    option = Option(default, valid, documentation, default_words, secret)
    return field(repr=not secret, metadata={"option": option})


# Validators of settings: functions by their dotted paths, mappings, weights, names.


def function(named: Mapping[str, Any] | None = None) -> Validator:
    """A function, its dotted path, or one of the ``named``."""
    known = named or {}

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = known.get(value) or _import(value)
        if not callable(value):
            raise ValueError
        return value

    names = "".join(f"{name!r}, " for name in known)
    return Validator(f"{names}a function, or the dotted path of one", read)


def _import(path: str) -> Any:
    try:
        return symbol_by_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be imported: {error}") from error


#: Rights of a user of the dashboard.
Role = Literal["viewer", "operator"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: In ``lowkiq_web_roles``: everybody else.
EVERYBODY = "*"


functions: Validator = matching(
    "a list of functions, or of their dotted paths",
    lambda value: isinstance(value, (list, tuple)),
    lambda value: tuple(function().read(entry) for entry in value),
)


def are_texts(value: Any, kinds: Any = (list, tuple)) -> bool:
    """Test for a collection of texts that are not empty."""
    return isinstance(value, kinds) and all(map(text().accepts, value))


def are_weights(value: Any) -> bool:
    """Test for weights within bounds: others would draw a queue always, or never."""
    return isinstance(value, Mapping) and all(
        text().accepts(name) and is_number(weight, 0.001, 1000) for name, weight in value.items()
    )


def are_roles(value: Any) -> bool:
    """Test for names with roles."""
    return isinstance(value, Mapping) and all(
        text().accepts(name) and role in get_args(Role) for name, role in value.items()
    )


def read_logins(value: Any) -> tuple[str, ...]:
    """Raises ValueError unless all are names and passwords, each name once."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(login, str) for login in found):
        raise ValueError
    parts = [login.partition(":") for login in found]
    if len({name for name, *_ in parts}) < len(parts) or not all(map(all, parts)):
        raise ValueError
    return tuple(found)


# Settings of the dashboard.


@dataclass(frozen=True)
class WebSettings:
    """The settings of the dashboard, read and checked; see ``settings.Settings``."""

    web_auth: tuple[str, ...] = setting(
        (),
        Validator("'user:password', or a list of these", read_logins),
        "Names and passwords of the [dashboard](dashboard.md), by HTTP basic authentication. Empty: the "
        "environment variable `LOWKIQ_WEB_AUTH`, one in a line.",
        secret=True,
    )
    web_roles: dict[str, Role] = setting(
        {},
        matching("a dict of user names, or '*', to 'viewer' or 'operator'", are_roles, dict),
        "[Roles](permissions.md#roles-in-the-dashboard) of the dashboard's users; `*` is everybody else. "
        "Empty: all are operators. Otherwise, others are refused.",
    )
    web_user_header: str | None = setting(
        None,
        text("the name of a header").or_none(),
        "Header in which a reverse proxy names the dashboard's user. It needs "
        "`lowkiq_web_trusted_proxies` or `lowkiq_web_proxy_secret`.",
    )
    web_trusted_proxies: tuple[Network, ...] = setting(
        (),
        matching(
            "a list of addresses or networks, as '10.0.0.0/8'",
            lambda value: isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value),
            lambda value: tuple(map(ipaddress.ip_network, value)),
        ),
        "Addresses of reverse proxies. Only they name a user by `lowkiq_web_user_header`, and the "
        "address and scheme of a browser by `X-Forwarded-For` and `X-Forwarded-Proto`.",
    )
    web_proxy_secret: str | None = setting(
        None,
        text("a text").or_none(),
        "Text that a reverse proxy sends in the header `X-Lowkiq-Proxy-Secret` of each request.",
        secret=True,
    )
    web_read_only: bool = setting(False, boolean, "The dashboard refuses every change.")


# Hides settings in ``inspect conf`` and ``report``, as Celery hides the broker's URL.

_utils: Any = utils
_shown = _utils.filter_hidden_settings


def _without_keys(conf: Mapping[str, Any]) -> Any:
    # Celery hides values of a mapping by their own names.
    return _shown({name: bool(v) if name.lower().endswith(KEYS) else v for name, v in conf.items()})


# Reads Celery's settings that each call needs.

_MISSING = object()


def celery_setting(app: Celery, name: str) -> Any:
    """Return ``app.conf.<name>``, found in the maps of the configuration directly: eight times as fast.

    The value is not kept: the sources of a configuration, such as Django's settings, may change at any time.
    """
    conf: Any = app.conf
    if type(conf) is not CelerySettings:
        return getattr(conf, name)
    maps: Any = conf.maps
    spellings = _spellings(name, conf.prefix, conf._keys)
    for mapping in maps:
        for key in spellings:
            value = mapping.get(key, _MISSING)
            if value is not _MISSING:
                return value
    return getattr(conf, name)


@lru_cache(maxsize=256)
def _spellings(name: str, prefix: str | None, converters: tuple[Callable[[str], str], ...] | None) -> Any:
    """Return the names under which a setting is looked up, in the order of Celery's own look-up."""
    unset: Any = CelerySettings({}, [], converters, prefix)
    return tuple(dict.fromkeys(unset._to_keys(name)))


# Settings of an app: each is declared once, with type, default, valid values and its documentation.

PREFIX = "lowkiq_"
#: Bytes; a claim takes at most this much of an id at a time.
LARGEST_PAYLOAD = 1024 * 1024


Exclusion = Literal["cooperative", "strict"]
PushDurability = Literal["fast", "replicated", "fsynced"]
MessageScore = Literal["arrival", "sent"]
Reshard = Literal["manual", "auto"]
RunIn = Literal["thread", "process"]

SCHEDULERS: dict[str, Any] = {"lag": claims.lag, "seq": claims.seq, "weighted": claims.weighted}
SPLITTERS: dict[str, Any] = {
    "lease": shares.lease_splitter,
    "default": shares.default_splitter,
}


def format_message(error: BaseException) -> str:
    """Type and message of an error, without its traceback."""
    return f"{type(error).__name__}: {error}"


FORMATS: dict[str, Any] = {"traceback": format_traceback, "message": format_message}


def _do_nothing(error: BaseException) -> None:
    """Celery logs the error anyway."""


@dataclass(frozen=True)
class Settings(WebSettings):
    """The settings of an app, read and checked. A name here is a Celery setting without its prefix."""

    #: ``redis_params.source_of`` decides where the store is.
    url: str | None = setting(
        None,
        text("the URL of a Redis").or_none(),
        "[Where the store is](#where-the-store-is): a `redis`, `rediss`, `valkey`, `valkeys`, "
        "`redis+socket`, `unix` or `sentinel` URL; or that of a [cluster](cluster.md), `redis+cluster`, "
        "`rediss+cluster`, `valkey+cluster` or `valkeys+cluster`. None: `broker_url`, which must then be a "
        "Redis, and no cluster. Celery's own Redis settings apply (`redis_backend_use_ssl`, ...).",
        secret=True,
    )
    redis_options: dict[str, Any] = setting(
        {},
        matching("a dict of redis-py connection arguments", lambda value: isinstance(value, Mapping), dict),
        "Further arguments of each Redis connection. `socket_timeout` is 5 s unless given here, on a cluster "
        "0.75 s. `global_keyprefix` begins [all keys](#two-installations-on-one-redis).",
        secret=True,
    )
    client_pool_size: int = setting(
        5,
        whole(1, 1000),
        "Largest number of [connections](#connections) for calls, listings and actions in a process.",
    )
    pool_timeout: float = setting(5.0, seconds(0.1, 600), "How long a thread waits for a free connection.")
    poll_interval: float = setting(
        1.0,
        seconds(0.01, 3600),
        "How often an idle lane looks for due jobs; a push wakes it at once. Where looking takes long, as "
        "with thousands of shards on a node, it is up to ten times as long.",
    )
    lease_seconds: float = setting(
        10.0,
        seconds(0.5, 3600),
        "How long a worker may be unresponsive; after 1.05 times as long, another worker takes its shards "
        "over.",
    )
    shutdown_timeout: float | None = setting(
        None,
        seconds(0, 86400).or_none(),
        "How long a worker that stops waits for its running batches; later ones are [left to the next "
        "worker](operations.md#shutdown-deadline). None: without limit.",
    )
    exclusion: Exclusion = setting(
        "cooperative",
        one_of(Exclusion),
        "A run whose worker was frozen or cut off for longer than its lease. "
        '`"cooperative"`: the run goes on beside the new owner\'s, and its settle is refused. '
        '`"strict"`: the kernel ends its process at that moment (Linux). See [the guarantees]'
        "(fencing.md#strict-exclusion).",
    )
    lanes: int | None = setting(
        None, whole(1, 1000).or_none(), "Number of threads for ordered tasks in a worker. None: `-c`."
    )
    run_in: RunIn = setting(
        "thread",
        one_of(RunIn),
        'Where tasks run that give no `run_in`: `"thread"`, or [`"process"`](processes.md).',
    )
    window: int = setting(
        50,
        whole(1, 1000),
        "Largest number of batches that a lane claims, and settles, at once. See [the window](#the-window).",
    )
    loop_start: Callable[[], Any] | None = setting(
        None,
        function().or_none(),
        "An `async def` function without arguments, called in each event loop before its first run: it opens "
        "clients and pools.",
    )
    loop_stop: Callable[[], Any] | None = setting(
        None, function().or_none(), "The same after the last run of an event loop: it closes them."
    )
    scheduler: Callable[[], claims.Scheduler] = setting(
        None,
        function(SCHEDULERS).or_none(),
        'The next shard of a lane, see [schedulers](#schedulers). None: `"weighted"` with '
        '`lowkiq_queue_weights`, else `"lag"`.',
    )
    queue_weights: dict[str, float] = setting(
        {},
        matching("a dict of queue names to numbers from 0.001 to 1000", are_weights, dict),
        "How often a queue with due jobs gets a lane's next turn, compared with the others: "
        '`{"critical": 3, "default": 1}`. A queue without a weight has 1. See '
        "[weights](policies.md#weights-of-queues).",
    )
    priority_max_wait: float = setting(
        60.0,
        seconds(0, 86400),
        "How long a due job may be passed by for [more urgent ones](policies.md#priority-of-a-call). Jobs "
        "that are due for longer come first, the oldest before all.",
    )
    splitter: shares.Splitter = setting(
        "lease", function(SPLITTERS), "The shards that a worker wants, see [splitters](#splitters)."
    )
    reshard: Reshard = setting(
        "manual",
        one_of(Reshard),
        "Workers [change the stored number of shards](changing-shards.md#with-a-deploy). "
        '`"auto"`: when the code of all living workers declares the same other number, and the splitter is '
        '`"lease"`. `"manual"`: never.',
    )
    server_middlewares: tuple[Any, ...] = setting(
        (),
        functions,
        "Functions [`m(task, batch, call)`](middlewares.md) around each run, the first outermost. `batch` is "
        "the jobs of the run.",
    )
    plain: frozenset[str] = setting(
        frozenset(),
        matching(
            "a list or set of names of tasks with by=",
            lambda value: are_texts(value, (list, tuple, set, frozenset)),
            frozenset,
        ),
        "Tasks with `by=` that run as [plain ones](in-place.md#there-and-back): their calls go to the "
        "broker.",
    )
    client_middlewares: tuple[Any, ...] = setting(
        (), functions, "The same around each push. `batch` is the entries of the call."
    )
    push_durability: PushDurability = setting(
        "fast", one_of(PushDurability), "When a call returns, see [durability](#durability)."
    )
    push_replicas: int = setting(
        1, whole(1, 100), 'Number of replicas that the durability `"replicated"` waits for.'
    )
    message_score: MessageScore = setting(
        "arrival",
        one_of(MessageScore),
        'Score of a [call by name](calling.md#calls-by-name) that gives none. `"arrival"`: the time when a '
        "worker stored it, by Redis's clock. `\"sent\"`: the time when it was sent, by the sender's clock.",
    )
    track_calls: bool = setting(
        False,
        boolean,
        "Every call keeps its own id and a record, also without a result. It shows in events and in Flower, "
        "and can be revoked.",
    )
    serializer: str = setting(
        "json",
        text("the name of a kombu serializer"),
        "Writes payloads and call records, see [serializers](#serializers). It must be in `accept_content`.",
    )
    signing: Mode = setting(
        "off",
        one_of(Mode),
        '[Signatures](signing.md) of calls. `"accept"`: calls are signed, and a worker runs what is not '
        'signed, but nothing whose signature is wrong. `"require"`: it runs only what is signed.',
    )
    signing_keys: Any = setting(
        None,
        Validator(EXPECTED, read_keys_setting).or_none(),
        "Keys of the signatures: `{name: secret}`, of which the first signs and all verify; a function that "
        "returns that; or the path of a JSON file with it. A secret has at least 16 bytes.",
        secret=True,
    )
    links: tuple[str, ...] | None = setting(
        None,
        matching("a list of names or patterns of tasks", are_texts, tuple).or_none(),
        "Tasks that [links of calls](signing.md#links) may name, as `shop.notify` or `shop.*`. None: all.",
    )
    max_payload_bytes: int = setting(
        64 * 1024,
        whole(1, LARGEST_PAYLOAD),
        "Largest serialized payload. A call with a larger one is refused; a larger one found in Redis goes "
        "to the morgue. Raise the setting in workers first, and lower it in callers first.",
    )
    format_error: Callable[[BaseException], str] = setting(
        "traceback",
        function(FORMATS),
        'Turns an exception into the text that a failed job keeps, at most 8 KiB. `"traceback"`: the frames '
        'from the task\'s function on, without local variables. `"message"`: type and message only.',
    )
    dump_error: Callable[[str], bytes] = setting(
        lambda text: text.encode("utf-8", "backslashreplace"),
        function(),
        "Turns the text of an error into the bytes to store, for instance compressed ones.",
        default_words="UTF-8",
    )
    load_error: Callable[[bytes], str] = setting(
        lambda data: data.decode("utf-8", "backslashreplace"),
        function(),
        "The inverse of `lowkiq_dump_error`.",
        default_words="UTF-8",
    )
    redact: tuple[str, ...] = setting(
        ("password", "token", "secret", "authorization", "card"),
        # An empty text would mask everything.
        matching("a list of texts", are_texts, tuple),
        "Names of secrets: the value of a key that contains one, whatever the case, is "
        "[masked](permissions.md#masked-values) on pages, in the API, in logs, events and stored errors. "
        "`()`: nothing is.",
    )
    metrics_port: int | None = setting(
        None,
        whole(0, 65535).or_none(),
        "Port of a worker's [metrics](metrics.md) for Prometheus. 0: any free port, which the log names. "
        "None: no metrics.",
    )
    metrics_host: str = setting(
        "127.0.0.1",
        text("an address or a host name"),
        "Address where the metrics listen. Metrics have no password, so open them to trusted machines only.",
    )
    last_words: Callable[[BaseException], Any] = setting(
        _do_nothing,
        function(),
        "Called with an error from outside a task's function that ends a lane or the worker.",
        default_words="does nothing",
    )

    @cached_property
    def redactor(self) -> Redactor:
        """Masks what ``lowkiq_redact`` names."""
        return redactor_of(self.redact)


#: All settings by their names without prefix, those of the dashboard last.
SETTINGS: dict[str, Option] = {
    found.name: found.metadata["option"]
    for found in sorted(fields(Settings), key=lambda found: found in fields(WebSettings))
}
#: Settings whose values appear in no message.
SECRETS = tuple(name for name, setting in SETTINGS.items() if setting.secret)

_hidden = "|".join((_utils.HIDDEN_SETTINGS.pattern, *(PREFIX + name for name in SECRETS)))
_utils.HIDDEN_SETTINGS = re.compile(_hidden, re.IGNORECASE)
_utils.filter_hidden_settings = _without_keys


def read_settings(app: Celery) -> Settings:
    """All settings of an app. Raises ConfigurationError for an unknown name and for an invalid value."""
    _refuse_unknown(app)
    values = {name: read_setting(app, name) for name in SETTINGS}
    return Settings(**{**values, "scheduler": _scheduler(values["scheduler"], values["queue_weights"])})


def _scheduler(given: Any, weights: dict[str, float]) -> Callable[[], claims.Scheduler]:
    if given is claims.weighted or (given is None and weights):
        return partial(claims.weighted, weights)
    return given or claims.lag


def read_setting(app: Celery, name: str) -> Any:
    """One setting, named without its prefix. Raises ConfigurationError."""
    setting = SETTINGS[name]
    return setting.valid.check(PREFIX + name, app.conf.get(PREFIX + name, setting.default), setting.secret)


def _refuse_unknown(app: Celery) -> None:
    for name, written in sorted(_given_names(app).items()):
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f"Did you mean {PREFIX + close[0]}?" if close else f"Known are {', '.join(SETTINGS)}"
            raise ConfigurationError(f"{PREFIX + name} is invalid: expected the name of a setting. {hint}")
        if app.conf.get(PREFIX + name, _MISSING) is _MISSING:
            raise ConfigurationError(
                f"{written} is invalid: expected {_spelling(app, name)}. As written, it has no effect"
            )


def _spelling(app: Celery, name: str) -> str:
    """How the app's configuration has to write a setting."""
    namespace = getattr(app, "namespace", None)
    plain = PREFIX + name
    return f"{plain!r}, or {f'{namespace}_{plain.upper()}'!r}" if namespace else repr(plain)


def _given_names(app: Celery) -> dict[str, str]:
    """The lowkiq settings that an app gives: how each is written, by its name without prefix."""
    # Without a namespace, Celery's own settings of old begin with CELERY_, and ours would have no effect.
    namespace = (getattr(app, "namespace", None) or "celery").lower()
    found = {}
    for written in (str(key) for mapping in (app.conf.maps or ()) for key in mapping):
        name = written.lower().removeprefix(f"{namespace}_")
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] = written
    return found
