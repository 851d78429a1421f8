"""``masters``: the servers that store the shards."""

from __future__ import annotations

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, json_option, table, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import duration, size
from celery_lowkiq.rules.topology import Kind, Master, Topology

HEADER = ("master", ">slots", ">shards", ">replicas", ">memory", ">clock", "server")
#: Smallest difference of clocks that is shown, in s.
MEASURABLE = 0.1


@command("Masters of Redis, with their shards.", ["masters", "masters --json"])
@json_option
def masters(inspector: Inspector, json_: bool) -> None:
    """The servers that store shards: those of a cluster, or the only one.

    shards: of all queues. clock: ahead of this host's by so much. Behind sentinels, the address of the master
    stands beside its name.

    Status 1 when a master is away or refuses all scripts, or slots of a cluster have none.
    """
    topology = inspector.topology()
    if json_:
        write_json(topology)
    else:
        write_text(table(HEADER, map(_row, topology.masters)))
        if topology.kind is Kind.CLUSTER:
            write_text(_summary(topology))
    if not topology.is_whole:
        raise click.exceptions.Exit(FAILED)


def _row(master: Master) -> list[str]:
    server = master.server
    slots = "-" if master.slots is None else str(master.slots)
    place = [master.name, slots, str(master.shard_count)]
    if master.away is not None:
        return [*place, "-", "-", "-", f"away: {master.away}"]
    if master.refuses is not None:
        return [*place, "-", "-", "-", f"refuses: {master.refuses}"]
    replicas = "-" if server.replicas is None else str(server.replicas)
    clock = f"{server.ahead:+.3f} s"
    return [*place, replicas, size(server.used_memory), clock, f"{server.name} {server.version}".rstrip()]


def _summary(topology: Topology) -> str:
    skew = topology.clock_skew
    clocks = f"The clocks of the masters differ by {duration(skew)} at least."
    if skew < MEASURABLE:
        clocks = "No difference between the clocks of the masters was measured."
    parts = [f"The busiest master has {topology.skew:.2f} times its share of shards.", clocks]
    if topology.unassigned:
        parts.append(f"{topology.unassigned} slots have no master.")
    return " ".join(parts)
