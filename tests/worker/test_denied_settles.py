"""Redis denies a node the right to settle what has run: it is settled when that is permitted, and once."""

from __future__ import annotations

import logging
import re
import threading

import pytest
import redis

from celery_lowkiq.rules.models import Disposition, Failure, Settlement
from celery_lowkiq.store.counts import failure_groups
from tests.bound import Queries
from tests.unit.meters import Tally
from tests.waiting import eventually
from tests.worker.engine import QUEUE, Engine

LOGIN = {"username": "denied", "password": "of the test"}
BEGINS, ENDS = "is not settled until Redis permits it: ", "is settled after "


@pytest.fixture
def admin(empty_redis):
    """May change the rights of the node's user."""
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        rights = "on", f">{LOGIN['password']}", "~*", "&*", "+@all"
        client.execute_command("ACL", "SETUSER", LOGIN["username"], "reset", *rights)
        yield client
        client.execute_command("ACL", "DELUSER", LOGIN["username"])


@pytest.fixture
def tally():
    return Tally()


@pytest.fixture
def one_lane(empty_redis, caplog, tally):
    caplog.set_level(logging.WARNING)
    options = {"lanes": 1, "poll_interval": 0.05, "lease_seconds": 30.0, "meter": tally}
    return Engine(empty_redis, login=LOGIN, **options)


@pytest.mark.parametrize("command", ["evalsha", "zmscore"], ids=["each script", "settles only"])
def test_what_ran_is_settled_when_that_is_permitted_again(admin, one_lane, tally, caplog, command):
    """The settle was dropped: the finished jobs ran once more."""
    gate = threading.Event()
    with one_lane as engine:
        engine.runner.act = lambda batch: gate.wait(30) and None
        engine.push(20)
        eventually(lambda: engine.runner.ids)
        admin.execute_command("ACL", "SETUSER", LOGIN["username"], f"-{command}")
        gate.set()
        eventually(lambda: shards(caplog, BEGINS))
        tries = tally.refusals
        eventually(lambda: tally.refusals > tries + 2)
        admin.execute_command("ACL", "SETUSER", LOGIN["username"], f"+{command}")
        engine.all_done()
    assert engine.lost_or_doubled() == {}
    # Two lines for each of the shards.
    begun = shards(caplog, BEGINS)
    assert sorted(begun) == sorted(shards(caplog, ENDS)) == sorted(set(begun))


def test_a_failed_run_is_counted_once_however_often_its_settle_is_tried(admin, one_lane, tally):
    """Each try counted it in its group."""

    def fail(batch):
        admin.execute_command("ACL", "SETUSER", LOGIN["username"], "-zscore")
        (job,) = batch.jobs
        return (Settlement(job.id, job.claim, Disposition.BURY, failure=Failure("f", b"about")),)

    with one_lane as engine:
        engine.runner.act = fail
        engine.push(1)
        eventually(lambda: tally.refusals > 3)
        admin.execute_command("ACL", "SETUSER", LOGIN["username"], "+zscore")
        eventually(lambda: Queries(engine.pushes.client).stats(QUEUE).dead == 1)
        (group,) = failure_groups(engine.pushes.client, QUEUE)
    assert group.count == 1


def shards(caplog, text):
    """The shards of lines of the log."""
    lines = [record.getMessage() for record in caplog.records]
    return [re.search(r"shard (\S+)", line)[1] for line in lines if text in line]
