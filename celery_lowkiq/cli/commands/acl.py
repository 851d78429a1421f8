"""``acl``: the rights in Redis of a caller, a worker, a reader or an operator."""

from __future__ import annotations

from typing import get_args

import click

from celery_lowkiq.integration.operations.inspector import Inspector
from celery_lowkiq.integration.task.options import QUEUE_NAME
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.store.scripts.acl import RoleName, rules

from ..params import command


@command("Rights in Redis of a role.", ["acl --role worker", "acl --role caller --queue sync_order"])
@click.option("--role", required=True, type=click.Choice(get_args(RoleName)), help="Who connects to Redis.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; may be repeated.")
@click.option("--user", help="Name of the user in Redis.  [default: lowkiq-ROLE]")
@click.option("--cluster", is_flag=True, help="For a Redis Cluster.")
@click.option(
    "--redis", metavar="VERSION", help="Version of Redis, as 7.2. Default: that of the one in lowkiq_url."
)
def acl(
    inspector: Inspector,
    role: RoleName,
    queues: tuple[str, ...],
    user: str | None,
    cluster: bool,
    redis: str | None,
) -> None:
    """Write the ACL rules of a role, as a command for redis-cli. Set a password with another one.

    A queue may be of another app, so its name is used as it is.
    """
    # A space would begin another rule, such as one for all keys.
    for name in (*queues, user or role):
        QUEUE_NAME.check("name", name)
    version = _version(inspector, redis)
    words = rules(role, queues, version, cluster)
    click.echo(" ".join(["ACL SETUSER", user or f"lowkiq-{role}", *words]))


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
