"""The actions of operators, declared once.

The CLI commands, the actions of the JSON API, the buttons of the pages, the actions in Flower and the remote
control commands are made from VERBS. A new action is one entry in it.
"""

from __future__ import annotations

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.text import count_of, duration

from .action_parts import (
    ALL_DEAD,
    ALL_FAILED,
    ALL_PAUSED_IDS,
    ALL_WAITING,
    DEAD_IDS,
    DEAD_OR_HELD_IDS,
    HELD_IDS,
    IDS,
    MATCHING_DEAD,
    MATCHING_FAILED,
    MIGRATION,
    ONE_SHARD,
    PAUSED_IDS,
    QUEUE,
    RESHARD,
    SHARDS,
    WAITING_IDS,
    Action,
    Target,
    Verb,
)
from .action_parts import verb as _verb
from .matching_actions import matching
from .payload_actions import DELETIONS, EDITS
from .queue import OrderedQueue
from .signing_actions import SIGN


def _reshard_plan(queue: OrderedQueue, target: Target) -> str:
    cost = queue.reshard_cost(target.values[SHARDS.name])
    return (
        f"The queue has {count_of(cost.former, 'shard')}. {cost.leaving} of {count_of(cost.jobs, 'job')}, "
        f"{cost.leaving_bytes / 2**20:.1f} MiB, would change shards: about {duration(cost.seconds)}."
    )


VERBS = (
    _verb(
        "run_now",
        "Make waiting jobs due now.",
        """Make waiting jobs of QUEUE due now, also retries and jobs that were to run later: some IDS (-: from
        stdin), or all.
        """,
        Action("run_now", WAITING_IDS, "Run now", "These waiting jobs become due now."),
        Action("run_now_all", ALL_WAITING, "Run all now", "All waiting jobs become due now."),
        done="made due",
        examples=("sync_order 42", "sync_order --all"),
    ),
    _verb(
        "pause",
        "Pause a queue, a shard or ids.",
        """Pause QUEUE, or one shard or some IDS of it (-: from stdin).

        Within a second no node starts anything new of it. Running jobs finish, new calls wait. The pause
        stays in Redis until `resume`. An id can be paused before it has a job. Status 1 when it was paused
        before.
        """,
        Action(
            "pause",
            QUEUE,
            "Pause",
            "No node starts anything new of the queue; running jobs finish.",
            call=lambda queue, *_: int(queue.pause()),
        ),
        Action(
            "pause_shard",
            ONE_SHARD,
            "Pause",
            "No node starts anything new of the shard; running jobs finish.",
            call=lambda queue, target, _: int(queue.pause(shard=target.values["shard"])),
        ),
        Action(
            "pause_ids", IDS, "Pause", "Jobs of these ids, also new ones, wait until the ids are resumed."
        ),
        done="paused",
        unchanged="paused before",
        examples=("sync_order", "sync_order --shard 3", "sync_order 42 43"),
    ),
    _verb(
        "resume",
        "Resume a queue, a shard or ids.",
        """Resume QUEUE, or one shard or some IDS of it (-: from stdin): its jobs are due at their own time.

        Each is resumed by itself: a paused id stays paused when its queue is resumed. Status 1 when it was
        not paused.
        """,
        Action(
            "resume", QUEUE, "Resume", "The queue runs again.", call=lambda queue, *_: int(queue.resume())
        ),
        Action(
            "resume_shard",
            ONE_SHARD,
            "Resume",
            "The shard runs again, unless its queue is paused.",
            call=lambda queue, target, _: int(queue.resume(shard=target.values["shard"])),
        ),
        Action("resume_ids", PAUSED_IDS, "Resume", "Jobs of these ids are due at their own time again."),
        Action("resume_all_ids", ALL_PAUSED_IDS, "Resume all ids", "All paused ids are resumed."),
        done="resumed",
        unchanged="not paused",
        examples=("sync_order", "sync_order 42", "sync_order --all-ids"),
    ),
    _verb(
        "requeue",
        "Move dead jobs back to the queue.",
        """Move dead jobs of QUEUE back to the queue: due now, as if they had never failed.

        IDS may be -: they come from stdin, one a line. With --error or another filter: all that
        match.
        """,
        Action(
            "requeue",
            DEAD_OR_HELD_IDS,
            "Requeue",
            "These dead jobs go back to the queue, due now, as new.",
        ),
        Action(
            "requeue_all",
            ALL_DEAD,
            "Requeue all",
            "All jobs that are dead now go back to the queue, due now, as new.",
        ),
        matching(
            "requeue_matching",
            "Requeue all that match",
            "requeue",
            "All dead jobs that match go back to the queue, due now, as new.",
            dead=True,
        ),
        Action(
            "requeue_forced",
            DEAD_IDS,
            "Force requeue",
            "These dead jobs go back to the queue, with payloads older than what ran since.",
            call=lambda queue, target, progress: queue.requeue(target.ids, progress, force=True),
            options=("force",),
            dangerous=True,
            policy="drop_stale",
        ),
        Action(
            "requeue_all_forced",
            ALL_DEAD,
            "Force requeue all",
            "All dead jobs go back to the queue, with payloads older than what ran since.",
            call=lambda queue, _, progress: queue.requeue_all(progress, force=True),
            options=("force",),
            dangerous=True,
            policy="drop_stale",
        ),
        done="requeued",
        examples=(
            "sync_order --all",
            "sync_order --all --yes",
            "sync_order 42 43",
            "sync_order - < ids.txt",
            "sync_order --error 'ValueError: bad sku*' --since 2h --dry-run",
            "sync_order --failure 9f86d081884c7d65 --limit 100 --rate 50/s",
        ),
    ),
    _verb(
        "bury",
        "Move waiting jobs to the morgue.",
        """Move waiting jobs of QUEUE to the morgue: some IDS (-: from stdin), or all that failed before.

        Their calls end as FAILURE. `requeue` brings the jobs back.
        """,
        Action(
            "bury", WAITING_IDS, "Bury", "These waiting jobs move to the morgue; their calls end as FAILURE."
        ),
        Action(
            "bury_failed",
            ALL_FAILED,
            "Bury all",
            "Waiting jobs that failed before move to the morgue; their calls end as FAILURE.",
        ),
        matching(
            "bury_matching",
            "Bury all that match",
            "bury",
            "Waiting jobs whose failure matches move to the morgue; their calls end as FAILURE.",
            dead=False,
            options=("failed",),
        ),
        dangerous=True,
        done="buried",
        examples=("sync_order --failed", "sync_order 42 43"),
    ),
    _verb(
        "delete",
        "Delete jobs.",
        """Delete waiting jobs of QUEUE, or dead ones. Running jobs go on.

        IDS may be -: they come from stdin, one a line. The calls of waiting jobs end as REVOKED.
        """,
        Action(
            "delete",
            WAITING_IDS,
            "Delete",
            "These waiting jobs are deleted; their calls end as REVOKED. Running jobs go on.",
        ),
        Action(
            "delete_failed",
            ALL_FAILED,
            "Delete all",
            "Waiting jobs that failed before are deleted; their calls end as REVOKED.",
        ),
        matching(
            "delete_matching",
            "Delete all failing that match",
            "delete",
            "Waiting jobs whose failure matches are deleted; their calls end as REVOKED.",
            dead=False,
            options=("failed",),
        ),
        matching(
            "delete_dead_matching",
            "Delete all dead that match",
            "delete_dead",
            "All dead jobs that match are deleted.",
            dead=True,
            options=("morgue",),
        ),
        Action("delete_dead", DEAD_IDS, "Delete", "These dead jobs are deleted.", options=("morgue",)),
        Action(
            "delete_dead_all",
            ALL_DEAD,
            "Delete all",
            "All jobs that are dead now are deleted.",
            options=("morgue",),
        ),
        *DELETIONS,
        dangerous=True,
        done="deleted",
        examples=(
            "sync_order 42 43",
            "sync_order --failed",
            "sync_order --morgue --all --yes",
            "sync_order --morgue --yes - < ids.txt",
        ),
    ),
    _verb(
        "hold",
        "Let dead payloads hold their ids.",
        """Let the dead payloads of some IDS of QUEUE (-: from stdin) hold them, as after a death with
        on_death="hold".

        Newer payloads wait until `requeue`, `delete --morgue` or `go-on`. Status 1 when no id was changed.
        """,
        Action(
            "hold",
            DEAD_IDS,
            "Hold",
            "Newer payloads of these ids wait until somebody has decided about the dead ones.",
            policy="may_hold",
        ),
        done="held",
        unchanged="held before, or without dead payloads",
        examples=("sync_order 42",),
    ),
    _verb(
        "go_on",
        "Let held ids go on.",
        """Let some IDS of QUEUE (-: from stdin) go on that a dead payload holds: it stays in the morgue, and
        newer payloads run. Status 1 when none was held.
        """,
        Action(
            "go_on",
            HELD_IDS,
            "Let the id go on",
            "The dead payloads of these ids stay in the morgue, and newer ones run over the gap.",
        ),
        dangerous=True,
        done="released",
        unchanged="not held",
        examples=("sync_order 42", "sync_order --yes - < ids.txt"),
    ),
    SIGN,
    _verb(
        "edit",
        "Replace a payload.",
        "",
        *EDITS,
        done="replaced",
        examples=(),
    ),
    _verb(
        "reshard",
        "Change the number of shards.",
        "",
        Action(
            "reshard",
            RESHARD,
            "Reshard",
            "Jobs move to the new number of shards while calls and workers go on; each id keeps its order.",
            call=lambda queue, target, progress: queue.reshard(target.values["shards"], progress),
            parameters=(SHARDS,),
            dangerous=True,
            plan=_reshard_plan,
        ),
        done="moved",
        examples=(),
    ),
    _verb(
        "pause_migration",
        "Pause the move to another number of shards.",
        "",
        Action(
            "pause_migration",
            MIGRATION,
            "Pause the move",
            "No more jobs move: they run where they are. An id is moved when a call comes for it.",
            call=lambda queue, *_: int(queue.pause_migration()),
        ),
        done="paused",
        unchanged="paused before",
        examples=(),
    ),
    _verb(
        "resume_migration",
        "Resume the move to another number of shards.",
        "",
        Action(
            "resume_migration",
            MIGRATION,
            "Resume the move",
            "Jobs move again.",
            call=lambda queue, *_: int(queue.resume_migration()),
        ),
        done="resumed",
        unchanged="not paused",
        examples=(),
    ),
    _verb(
        "abort_migration",
        "Move back to the former number of shards.",
        "",
        Action(
            "abort_migration",
            MIGRATION,
            "Abort the move",
            "Jobs go back to the former number of shards; each id keeps its order.",
            call=lambda queue, *_: int(queue.abort_migration() > 0),
            dangerous=True,
        ),
        done="aborted",
        examples=(),
    ),
    Verb(
        "quiet",
        "Let a node finish and start nothing new.",
        """Ask NODE to finish what it runs of ordered queues and to start nothing new: others get its shards.

        Its ordinary tasks go on. `unquiet`, or a restart, ends it. Status 1 when the node does not answer.
        """,
        ("quiet celery@host",),
        node_reply="quiet: running jobs finish, and nothing new starts",
    ),
    Verb(
        "unquiet",
        "Let a quiet node serve again.",
        "Ask NODE to serve ordered queues again, after `quiet`. Status 1 when it does not answer.",
        ("unquiet celery@host",),
        node_reply="serves ordered queues again",
    ),
)

#: All actions on queues by their names.
ACTIONS = {one.name: one for verb in VERBS for one in verb.actions}


def action_of(name: str) -> Action:
    """The action of that name. Raises InvalidCall, which lists all."""
    if name not in ACTIONS:
        raise InvalidCall(f"action={name[:100]!r} is invalid: expected one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def offered_for_matches(listing: str, queue: OrderedQueue) -> list[Action]:
    """The actions that a listing of failing or dead jobs offers for all jobs that its filters match."""
    kind = {"retries": MATCHING_FAILED, "morgue": MATCHING_DEAD}.get(listing)
    return [one for one in ACTIONS.values() if one.scope is kind and one.fits(queue)]


def offered(listing: str, queue: OrderedQueue, *, ids: bool) -> list[Action]:
    """The actions that a listing of the queue's page offers, for chosen ids or for all."""
    found = (one for one in ACTIONS.values() if listing in one.scope.listings and one.scope.ids == ids)
    return [one for one in found if one.fits(queue)]
