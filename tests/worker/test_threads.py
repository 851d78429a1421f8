"""What Celery has for pools of processes, and a worker with lanes does not."""

from __future__ import annotations

import pytest

from tests.worker.checks import command


def ask(app, name, **arguments):
    (answer,) = command(app, name, "w0@test", **arguments)
    return answer


def test_autoscale_is_refused(app, start_worker):
    node = start_worker("--autoscale=4,2", wait=False)
    assert node.exit_status() != 0
    assert "--autoscale is not supported with ordered queues: the number of lanes is fixed" in node.logs()


@pytest.mark.full
@pytest.mark.parametrize("name", ["pool_grow", "pool_shrink"])
def test_the_pool_keeps_its_size(app, start_worker, name):
    start_worker()
    assert ask(app, name, n=1)["error"].startswith(f"{name}: the number of lanes is fixed")
    assert "Autoscale not enabled" in ask(app, "autoscale", max=4, min=2)["error"]
    assert len(ask(app, "stats")["lowkiq"]["lanes"]) == 4


@pytest.mark.full
def test_other_pools_grow_as_before(app, start_worker):
    start_worker(pool="prefork", lanes=1)
    assert ask(app, "pool_grow", n=1) == {"ok": "pool will grow"}


#: As they are in the log.
WITHOUT_EFFECT = {
    "worker_max_tasks_per_child": "there is no child to replace",
    "worker_max_memory_per_child": "there is no child to replace",
    "task_time_limit": "a lane is a thread",
    "task_soft_time_limit": "a lane is a thread",
}


@pytest.mark.full
def test_settings_without_effect_are_in_the_log(app, settings, start_worker, ledger):
    settings.update(dict.fromkeys(WITHOUT_EFFECT, 1))
    node = start_worker(lanes=1)
    for setting, why in WITHOUT_EFFECT.items():
        assert node.logs().count(f"{setting} has no effect on a thread pool: {why}") == 1
    for number in range(3):
        app.tasks["record"].delay(str(number))
    assert len({line["pid"] for line in ledger.wait_for("end", 3)}) == 1


@pytest.mark.full
def test_time_limits_at_run_time_are_refused(app, start_worker):
    start_worker(lanes=1)
    assert ask(app, "time_limit", task_name="record", hard=5)["error"].startswith("time_limit: its lane runs")
    assert ask(app, "time_limit", task_name="plain", hard=5) == {"ok": "time limits set successfully"}
