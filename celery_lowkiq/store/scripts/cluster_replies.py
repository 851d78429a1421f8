"""What replies of the nodes of a Redis Cluster mean: asked elsewhere, later, or lost."""

from __future__ import annotations

from typing import Any

from redis import exceptions

from .keeping_pool import NoFreeConnection

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
