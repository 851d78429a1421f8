"""``acl``: the rights in Redis of a caller, a worker, a reader or an operator."""

from __future__ import annotations

from typing import get_args

import click

from celery_lowkiq.cli.output import command, write_text
from celery_lowkiq.integration.app import context_of, read_queue_name
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.options import QUEUE_NAME
from celery_lowkiq.rules.errors import ConfigurationError, StoreError
from celery_lowkiq.rules.text import full_names
from celery_lowkiq.store.acl import RoleName, rules


@command("Rights in Redis of a role.", ["acl --role worker", "acl --role caller --queue sync_order"])
@click.option("--role", required=True, type=click.Choice(get_args(RoleName)), help="Who connects to Redis.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; may be repeated.")
@click.option("--user", help="Name of the user in Redis.  [default: lowkiq-ROLE]")
@click.option(
    "--cluster/--no-cluster",
    default=None,
    help="Rules for a Redis Cluster. Default: if lowkiq_url is that of one.",
)
@click.option(
    "--trackers/--no-trackers",
    default=True,
    help="The role reaches trackers, which are of no queue.  [default: trackers]",
)
@click.option(
    "--redis", metavar="VERSION", help="Version of Redis, as 7.2. Default: that of the one in lowkiq_url."
)
def acl(
    inspector: Inspector,
    role: RoleName,
    queues: tuple[str, ...],
    user: str | None,
    cluster: bool | None,
    trackers: bool,
    redis: str | None,
) -> None:
    """Write the ACL rules of a role, as a command for redis-cli. Set a password with another one.

    A QUEUE that the app does not have is used as it is: it may be of another app.
    """
    # A space would begin another rule, such as one for all keys.
    for name in (*queues, user or role):
        QUEUE_NAME.check("name", name)
    version = _version(inspector, redis)
    if cluster is None:
        cluster = _is_cluster(inspector)
    names = [_full_name(inspector, queue) for queue in queues]
    words = rules(role, names, version, cluster, context_of(inspector.app).key_prefix(), trackers)
    write_text(" ".join(["ACL SETUSER", user or f"lowkiq-{role}", *words]))


def _full_name(inspector: Inspector, given: str) -> str:
    """Return the app's queue with this name or last part of a name, or else the name as it is."""
    tasks = inspector.tasks()
    if not full_names(given, tasks):
        write_text(f"the app has no queue {given}: the rules have this name as it is", err=True)
        return given
    name = read_queue_name(given, tasks)
    if name != given:
        write_text(f"{given} is queue {name}", err=True)
    return name


def _is_cluster(inspector: Inspector) -> bool:
    try:
        return "cluster" in context_of(inspector.app).redis_parameters()
    except ConfigurationError:
        return False  # Rules can be written without a Redis.


def _version(inspector: Inspector, given: str | None) -> tuple[int, int]:
    try:
        if given is None:
            server = inspector.server()
            # Valkey has the commands of the Redis that it was made from.
            given = "7.2" if server.kind == "Valkey" else server.version
        major, minor, *_ = given.split(".")
        return int(major), int(minor)
    except StoreError as error:
        raise click.UsageError(f"{error}. Name its version: --redis 7.2") from error
    except ValueError:
        raise click.UsageError(f"--redis {given!r} is invalid: expected a version, as 7.2") from None
