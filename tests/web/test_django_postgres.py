"""The dashboard of a Django project on a real PostgreSQL: connections, and a restart of the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from tests.web.django_servers import asgi_server, load, load_often, wsgi_server

psycopg = pytest.importorskip("psycopg")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("initdb") is None, reason="no PostgreSQL on PATH"),
]

PREFIX = "/ops/queues"
#: PostgreSQL refuses root.
AS_ROOT = {"user": "nobody"} if os.geteuid() == 0 else {}


class Postgres:
    """A server on a private socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if AS_ROOT:
            shutil.chown(folder, "nobody")
        self._run("initdb", "-U", "shop", "-A", "trust", "-D", "data")
        self.start()

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c max_connections=60"
        self._run("pg_ctl", "-D", "data", "-w", "-o", options, "-l", "log", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "-w", "stop")

    def clients(self) -> int:
        """Number of connections but this one."""
        with psycopg.connect(host=str(self.folder), user="shop", dbname="postgres") as connection:
            query = (
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            return connection.execute(query).fetchone()[0]

    def _run(self, *words: str) -> None:
        subprocess.run(
            words, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, timeout=60, env=_ENV, **AS_ROOT
        )


_ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    # Not tmp_path, whose parents only we may enter.
    with tempfile.TemporaryDirectory(prefix="lowkiq-pg-") as folder:
        server = Postgres(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def session_with(django_shop, postgres) -> Iterator[Callable[[int], str]]:
    """Puts the tables of the example's project into PostgreSQL; the session of a superuser."""
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.db import connections
    from django.test import Client

    def use(settings: dict[str, Any]) -> None:
        connections.close_all()
        connections.settings["default"] = settings
        with contextlib.suppress(AttributeError):  # this thread may have none
            del connections["default"]

    def session(conn_max_age: int) -> str:
        settings = {**former, "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "shop"}
        settings |= {"HOST": str(postgres.folder), "CONN_MAX_AGE": conn_max_age, "CONN_HEALTH_CHECKS": True}
        use(settings)
        call_command("migrate", verbosity=0)
        browser = Client()
        browser.force_login(get_user_model().objects.create_superuser("root", password="first"))
        connections.close_all()
        return browser.cookies["sessionid"].value

    former = connections.settings["default"]
    yield session
    use(former)


@pytest.mark.parametrize(
    "serve, name, conn_max_age, left",
    [
        (wsgi_server, "wsgi", 0, 0),
        (asgi_server, "application", 0, 0),
        (partial(wsgi_server, threads=10), "wsgi", 600, 10),
    ],
    ids=["wsgi", "asgi", "persistent connections of ten threads"],
)
def test_connections_do_not_pile_up_and_a_restart_is_survived(
    session_with, postgres, serve, name, conn_max_age, left
):
    """F8: 28 connections were left after 60 page loads, and a restart broke the dashboard for good."""
    from examples.dashboard import with_django

    session = session_with(conn_max_age)
    with serve(getattr(with_django, name)) as port:
        statuses = load_often(port, f"{PREFIX}/nodes", session, threads=30, times=60)
        assert statuses == [200] * 1800
        eventually(lambda: postgres.clients() <= left)
        postgres.stop()
        postgres.start()
        assert load(port, f"{PREFIX}/", session)[0] == 200
        assert load_often(port, f"{PREFIX}/nodes", session, threads=5, times=2) == [200] * 10
