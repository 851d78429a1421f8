"""What worker tests look at in the store and in the ledger."""

from __future__ import annotations

import contextlib
from collections import Counter

import psutil

from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually


def leases(task):
    return task.ordered_queue._context.store.observe(task.queue_spec.shard_refs())


def released(task):
    return all(lease.owner == "" for lease in leases(task))


def suspects(task):
    """How many jobs have a crash mark."""
    client = task.ordered_queue._context.store.client
    return sum(
        client.commands([("HLEN", shard_keys(s)["crash_marks"]) for s in task.queue_spec.shard_refs()])
    )


def shares(app):
    """How many shards of all queues each worker has."""
    owners = [
        lease.owner for name in ("record", "gated", "batches", "outcome") for lease in leases(app.tasks[name])
    ]
    return sorted(Counter(owner for owner in owners if owner).values())


def overlaps(lines):
    """Ids that two runs worked on at the same time; a killed process ends its runs."""
    running, found = {}, []
    for line in lines:
        if line["event"] == "start":
            other = running.get(line["id"])
            if other is not None and other == line["pid"]:
                found.append(line["id"])
            running[line["id"]] = line["pid"]
        elif line["event"] == "end":
            if running.get(line["id"]) != line["pid"]:
                found.append(line["id"])
            running.pop(line["id"], None)
    return found


def command(app, name, *nodes, **arguments):
    """The nodes' answers to a remote control command, sent again until all have answered.

    One that has just started may not listen yet. All answer a ping first: a command that is sent again may
    find nothing left to do.
    """

    def answers(name, arguments=None):
        replies = app.control.broadcast(
            name, reply=True, timeout=5, limit=len(nodes), destination=nodes, arguments=arguments
        )
        return (
            [answer for reply in replies for answer in reply.values()] if len(replies) == len(nodes) else []
        )

    eventually(lambda: answers("ping"), 40)
    return eventually(lambda: answers(name, arguments), 40)


def is_alive(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
