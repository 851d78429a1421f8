"""Results of eager calls are those that a worker would give. No Redis."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_lowkiq import ById, JobsFailed, ordered_task


@pytest.fixture
def app():
    app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.task_always_eager = True
    return app


def test_each_id_has_its_own(app):
    @ordered_task(app=app, batch_size=10)
    def sums(payloads_by_id):
        return ById({job_id: sum(payloads) for job_id, payloads in payloads_by_id.items()})

    assert sums.delay("1", 5).get() == 5
    results = sums.perform_async([{"id": n, "payload": n} for n in (1, 2, 3)], results=True)
    assert [result.get() for result in results] == [1, 2, 3]


def test_each_id_has_its_own_error(app):
    @ordered_task(app=app, batch_size=10)
    def picky(payloads_by_id):
        wrong = {job_id: ValueError(job_id) for job_id in payloads_by_id if job_id != "1"}
        if wrong:
            raise JobsFailed(wrong)

    assert repr(picky.delay("2").result) == "ValueError('2')"
    results = picky.perform_async([{"id": n} for n in (1, 2)], results=True)
    assert [result.state for result in results] == ["SUCCESS", "FAILURE"]


def test_links_and_chains(app):
    @ordered_task(app=app)
    def keeps(payloads_by_id):
        seen.append(payloads_by_id)
        return "kept"

    @app.task(shared=False)
    def add(x, y):
        return x + y

    seen = []
    assert (add.s(1, 2) | keeps.s("42") | add.s("!")).delay().get() == "kept!"
    keeps.apply_async(("1",), link=keeps.s("2"))
    assert seen == [{"42": [3]}, {"1": [""]}, {"2": ["kept"]}]
