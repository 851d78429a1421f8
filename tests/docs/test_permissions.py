"""docs/permissions.md: the rights of the broker's user are enough for Celery's worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

PAGE = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
#: In a process of its own: the tasks of other tests belong to every app of this one.
PROGRAM = """
import sys, threading
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("rights", broker=sys.argv[1], backend=sys.argv[1])
done = threading.Event()

@app.task(bind=True, ignore_result=True)
def fail_once(self):
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    done.set()

with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False):
    fail_once.delay()
    assert done.wait(30)
    assert app.control.inspect(timeout=1).ping()
assert app.control.purge() == 0
app.backend.store_result("1", "saved", "SUCCESS")
assert app.backend.get_task_meta("1")["result"] == "saved"
"""


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
        words = [sys.executable, "-c", PROGRAM, url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        # Redis 6.2 also refuses CLIENT, by which redis-py would only give its name.
        assert {entry["object"] for entry in admin.acl_log()} <= {"client"}
        admin.execute_command("ACL", "DELUSER", "celery")
