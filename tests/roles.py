"""Users of Redis with the rights of a role, as ``lowkiq acl`` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from celery_lowkiq.store.scripts.acl import RoleName, rules
from celery_lowkiq.store.scripts.connect import connect

PASSWORD = "secret"


def version_of(admin: redis.Redis) -> tuple[int, int]:
    """The version of Redis that a server is, or says that it is."""
    major, minor, *_ = admin.info("server")["redis_version"].split(".")
    return int(major), int(minor)


#: What tests of the store do beside it.
OF_TESTS = ("&c", "+set", "+config")


def make_user(admin: redis.Redis, role: RoleName, *queues: str, extra: tuple[str, ...] = ()) -> str:
    """Make a user of the role, and return its name."""
    name = f"lowkiq-{role}"
    words = rules(role, queues, version_of(admin))
    admin.execute_command("ACL", "SETUSER", name, *words, *extra, f">{PASSWORD}")
    return name


@contextmanager
def client_of(
    socket_path: str, role: RoleName, *queues: str, extra: tuple[str, ...] = ()
) -> Iterator[redis.Redis]:
    """A client with the rights of a role."""
    with redis.Redis(unix_socket_path=socket_path) as admin:
        admin.execute_command("ACL", "DELUSER", f"lowkiq-{role}")
        parameters = {
            "path": socket_path,
            "username": make_user(admin, role, *queues, extra=extra),
            "password": PASSWORD,
        }
        client = connect(parameters, pool_size=8, pool_timeout=5)
        try:
            yield client
        finally:
            client.connection_pool.disconnect()


def denied(admin: redis.Redis) -> list[str]:
    """What Redis has denied since the last ACL LOG RESET, but what redis-py tries at each connect."""
    found = [entry for entry in admin.acl_log() if not str(entry["object"]).startswith("client")]
    return [f"{entry['reason']} {entry['object']} ({entry['context']})" for entry in found]
