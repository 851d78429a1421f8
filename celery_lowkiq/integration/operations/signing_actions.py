"""The verb of operators that vouch for payloads whose signatures do not verify."""

from __future__ import annotations

from .action_parts import DEAD_IDS, Action, verb

SIGN = verb(
    "sign",
    "Sign dead payloads that were refused.",
    """Sign the dead payloads of IDS (-: from stdin) of QUEUE as they are: look at them first.

    `requeue` then runs them. The app needs lowkiq_signing_keys.
    """,
    Action(
        "sign_dead",
        DEAD_IDS,
        "Sign",
        "The payloads of these dead jobs are signed as they are: look at them first. Requeued, they run.",
        call=lambda queue, target, progress: queue.sign_dead(target.ids, progress),
        dangerous=True,
        available=lambda queue: queue.is_signed,
    ),
    done="signed",
    examples=("sync_order 42",),
)
