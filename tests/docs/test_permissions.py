"""docs/permissions.md: the rights of the broker's user are enough for Celery's worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.contrib.testing.worker import start_worker

from tests.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()


@pytest.mark.full
@pytest.mark.parametrize("server", ["redis_server", "redis_62_server"])
def test_the_rights_of_the_broker_are_enough(server, request):
    server = request.getfixturevalue(server)
    (line,) = re.findall(r"^user (celery on .*)$", PAGE, re.MULTILINE)
    with redis.Redis(unix_socket_path=server.socket_path) as admin:
        admin.flushall()
        admin.acl_log_reset()
        admin.execute_command("ACL", "SETUSER", *line.split())
        url = server.url.replace("://", "://celery:password@")
        ran = []

        def fail_once(self):
            ran.append(self.request.retries)
            if not self.request.retries:
                raise self.retry(countdown=0.1)

        with Celery("rights", broker=url, backend=url, set_as_current=False) as app:
            task = app.task(name="rights.fail_once", shared=False, bind=True, ignore_result=True)(fail_once)
            with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False):
                task.delay()
                eventually(lambda: ran == [0, 1])
                assert app.control.inspect(timeout=1).ping()
            assert app.control.purge() == 0
            app.backend.store_result("1", "saved", "SUCCESS")
            assert app.backend.get_task_meta("1")["result"] == "saved"
        # Redis 6.2 also refuses CLIENT, by which redis-py would only give its name.
        assert {entry["object"] for entry in admin.acl_log()} <= {"client"}
        admin.execute_command("ACL", "DELUSER", "celery")
