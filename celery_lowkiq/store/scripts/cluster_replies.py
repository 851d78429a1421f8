"""What replies of the nodes of a Redis Cluster mean: asked elsewhere, later, or lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from redis import exceptions

from celery_lowkiq.rules.errors import AccessDenied, MasterDenies

from .cluster_outages import CALLS, COMMANDS, LOGIN, RIGHTS, WRITES, Refused, text_of
from .keeping_pool import NoFreeConnection
from .redis_errors import is_cluster_down, store_error

#: What a slot answers that moves or has no master for a moment.
LATER = (exceptions.TryAgainError, exceptions.ClusterDownError)
#: Codes of errors that redis-py 5.0 does not know, unless its client is one of a cluster.
LATER_TEXTS = ("TRYAGAIN ", "CLUSTERDOWN ")
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)
#: Of these, what another attempt does not change.
REFUSED = (exceptions.AuthenticationError, exceptions.BusyLoadingError, NoFreeConnection)


def is_redirect(reply: Any) -> bool:
    """Whether a node names another one to be asked."""
    return isinstance(reply, exceptions.ResponseError) and (
        isinstance(reply, exceptions.AskError) or str(reply).startswith(("MOVED ", "ASK "))
    )


def is_ask(reply: Any) -> bool:
    """Whether a redirection is for one time only."""
    return not isinstance(reply, exceptions.MovedError) and not str(reply).startswith("MOVED ")


def is_lost(reply: Any) -> bool:
    """Whether a connection was lost that may be opened again."""
    # Not after a timeout: the next attempt would take as long.
    return isinstance(reply, LOST) and not isinstance(reply, (*REFUSED, exceptions.TimeoutError))


def may_follow(reply: Any) -> bool:
    """Whether another attempt may be answered."""
    if not isinstance(reply, (exceptions.RedisError, OSError)):
        return False
    is_later = isinstance(reply, LATER) or str(reply).startswith(LATER_TEXTS)
    return is_later or is_lost(reply) or is_redirect(reply)


def final(reply: Any) -> Any:
    """Return the reply that a caller gets when no more attempts are made."""
    if is_redirect(reply):
        return exceptions.ConnectionError(f"a slot moves: {reply}")
    return exceptions.ConnectionError(str(reply)) if isinstance(reply, OSError) else reply


def with_denials(replies: Iterable[Any], denied: dict[str, str]) -> list[Any]:
    """Return replies with the AccessDenied of one master as its MasterDenies, whose text ``denied`` gets."""
    found = []
    for reply in replies:
        if isinstance(reply, AccessDenied) and not isinstance(reply, MasterDenies):
            denied[reply.master or ""] = str(reply)
            reply = MasterDenies(str(reply))
        found.append(reply)
    return found


#: What a node refuses, by the code of its error.
_CODES = {"NOREPLICAS": WRITES, "MISCONF": WRITES, "READONLY": WRITES, "OOM": CALLS, "CLUSTERDOWN": COMMANDS}
#: Redis 6.2 puts the error of a command within the text of the script's error.
_CODE = re.compile(rf"(?:^|-)({'|'.join(_CODES)}) (.*)")
#: Redis 7 names the line of the script behind the error.
_LINE = re.compile(r" script: \w+, on @.*")
#: Redis-py removes the codes of these.
_KNOWN = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ClusterDownError: "CLUSTERDOWN",
}
_DOWN = " (a slot has no master, and cluster-require-full-coverage is yes, or most masters are away)"


def refusal(reply: Any) -> Refused | None:
    """Return what the node of a reply refuses, when that is more than this command."""
    error: Any = reply
    if not hasattr(error, "node"):
        return None
    if isinstance(reply, exceptions.AuthenticationError):
        return Refused(LOGIN, str(store_error(error)), error.sent_at)
    if not isinstance(reply, exceptions.ResponseError):
        return None
    if isinstance(denied := store_error(error), AccessDenied):
        return Refused(RIGHTS, str(denied), error.sent_at)
    code = next((code for kind, code in _KNOWN.items() if isinstance(reply, kind)), "")
    found = _CODE.search(f"{code} {error}".lstrip())
    if found is None:
        return None
    code, reason = found.groups()
    if code == "CLUSTERDOWN" and not is_cluster_down(error):
        return None
    what, reason = _CODES[code], _LINE.sub("", reason).rstrip(". ")
    text = f"Redis {text_of(error.node)} refuses {what}: {code} {reason}{_DOWN if what == COMMANDS else ''}"
    return Refused(what, text, error.sent_at)
