"""Workers behind three real sentinels, which replace a master that dies."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.publish import CallUnavailable
from tests.sentinels import NAME, PASSWORD, running_sentinels
from tests.waiting import eventually


@pytest.fixture
def sentinels(tmp_path):
    with running_sentinels(tmp_path / "sentinels") as found:
        yield found


@pytest.fixture
def settings(settings, sentinels):
    """The broker stays elsewhere; the name of the master is where Celery's users write it."""
    options = {"master_name": NAME, "sentinel_kwargs": {"password": PASSWORD}}
    return {
        **settings,
        "lowkiq_url": sentinels.url,
        "result_backend_transport_options": options,
        "lowkiq_redis_options": {"socket_timeout": 1.0},
    }


@pytest.mark.full
def test_work_goes_on_when_the_master_dies(app, sentinels, start_worker, ledger):
    record = app.tasks["record"]
    start_worker("-c", "2")
    for number in range(20):
        record.delay(str(number), number)
    ledger.wait_for("end", 20)
    # Replication is asynchronous: what the replica has not got would run again.
    with sentinels.client(0) as master:
        assert master.wait(1, 5000) == 1
    sentinels.servers[0].kill()
    began = time.monotonic()
    for number in range(20, 40):
        eventually(lambda number=number: _called(record, str(number)), 60)
    ends = ledger.wait_for("end", 40)
    print(f"all ran {time.monotonic() - began:.1f} s after the master had died")
    assert {line["id"] for line in ends} == {str(number) for number in range(40)}
    assert sentinels.role(1) == "master"
    (master,) = Inspector(app).topology().masters
    assert (master.address, master.place) == (f"{NAME} db 0", f"127.0.0.1:{sentinels.servers[1].port}")
    assert Inspector(app).server().address == master.name
    sentinels.servers[0].restart()
    eventually(lambda: sentinels.role(0) == "slave", 60)
    findings = {finding.subject: finding for finding in Inspector(app).doctor()}
    assert findings["min-replicas-to-write"].level == "warning"
    assert findings["connection"].text == f"Redis answers. {NAME} db 0 is {master.place}."


def _called(record, job_id):
    try:
        record.delay(job_id, 1)
    except CallUnavailable:
        return False
    return True
