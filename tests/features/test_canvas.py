"""Celery's canvas with ordered tasks in every place."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError

from celery_lowkiq import InvalidCall
from celery_lowkiq.rules.models import shard_of
from tests.waiting import eventually
from tests.worker.nodes import worker

WAIT = 30


@pytest.fixture
def add(features):
    return features.app.tasks["add"]


@pytest.fixture
def client(features):
    """An app without the code of the tasks."""
    made = Celery("client", set_as_current=False)
    made.conf.update({name: features.app.conf[name] for name in ("broker_url", "result_backend")})
    yield made
    # An AsyncResult that ends after its server would wait for it in vain.
    made.backend.remove_pending_result = lambda result: None
    made.close()


@pytest.fixture
def tell(features):
    return features.app.tasks["tell"]


def called(features, work, job_id, merged, **options):
    """One call with options; merged with another one, or alone."""
    if not merged:
        return work.apply_async((job_id, {"return": 7}), **options)
    with features.holding(work, job_id):
        work.delay(job_id, "another")
        return work.apply_async((job_id, {"return": 7}), score=2e9, **options)


both = pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])


@both
def test_link(features, work, tell, job_id, merged):
    called(features, work, job_id, merged, link=tell.s(label=job_id))
    assert features.wait_for("told", label=job_id)[0]["value"] == 7


@both
def test_several_links_of_which_one_is_ordered(features, work, tell, new_id, merged):
    one, two = new_id(), new_id()
    called(features, work, one, merged, link=[tell.s(label=one), work.s(two)])
    features.wait_for("told", label=one)
    assert features.wait_for("run", id=two)[0]["payloads"] == [7]


@both
def test_link_error(features, work, job_id, merged):
    mourn = features.app.tasks["mourn"]
    with features.holding(work, job_id) if merged else features.nothing():
        if merged:
            work.apply_async((job_id, {"fail": "first"}), score=1, ignore_result=True)
        result = work.apply_async((job_id, {"fail": "boom"}), score=2, link_error=mourn.s())
    features.wait_for("mourned", task_id=result.id)
    assert len(features.noted("mourned", task_id=result.id)) == 1


def test_an_ordered_errback_goes_through_the_store(features, work, add, new_id):
    """Its payload is the id of the call that failed."""
    one, two = new_id(), new_id()
    result = work.apply_async((one, {"fail": "boom"}), link_error=work.s(two))
    (run,) = features.wait_for("run", id=two)
    assert run["payloads"] == [result.id]
    three = new_id()
    failed = add.apply_async((1, "x"), link_error=work.s(three))
    assert features.wait_for("run", id=three)[0]["payloads"] == [failed.id]


class TestChain:
    def test_the_parents_result_is_the_payload(self, work, add, job_id):
        result = chain(add.s(1, 2), work.s(job_id), add.s(["end"])).delay()
        assert result.get(WAIT) == [job_id, [3], "end"]

    def test_of_ordered_tasks(self, work, new_id):
        one, two = new_id(), new_id()
        assert (work.s(one, "x") | work.s(two)).delay().get(WAIT) == [two, [[one, ["x"]]]]

    def test_an_immutable_one_keeps_its_payload(self, work, add, job_id):
        assert chain(add.s(1, 2), work.si(job_id, "own")).delay().get(WAIT) == [job_id, ["own"]]

    def test_a_payload_too_many_names_si(self, work, add, job_id):
        with pytest.raises(TypeError, match=r"one\.si\(\.\.\.\)"):
            work.s(job_id, "own").apply_async(("result",))

    def test_a_keyed_task_takes_the_result_alone(self, features, add, job_id):
        keyed = features.app.tasks["keyed"]
        result = chain(features.app.tasks["give"].s({"id": job_id, "v": 1}), keyed.s()).delay()
        assert result.get(WAIT) == [job_id, [{"id": job_id, "v": 1}]]

    def test_a_failure_fails_the_rest(self, work, add, job_id):
        result = chain(work.s(job_id, {"fail": "boom"}), add.s(1)).delay()
        with pytest.raises(ValueError, match="boom"):
            result.get(WAIT)
        assert result.parent.state == "FAILURE"

    def test_of_merged_calls_each_goes_on(self, features, work, add, job_id):
        with features.holding(work, job_id):
            results = [chain(work.s(job_id, {"return": [n]}), add.s(["end"])).delay() for n in range(3)]
        assert [result.get(WAIT) for result in results] == [[2, "end"]] * 3


class TestGroupsAndChords:
    def test_a_group(self, work, new_id):
        ids = [new_id() for _ in range(5)]
        result = group(work.s(i, n) for n, i in enumerate(ids)).delay()
        assert result.get(WAIT) == [[i, [n]] for n, i in enumerate(ids)]

    def test_a_group_of_one_id(self, features, work, job_id):
        with features.holding(work, job_id):
            result = group(work.s(job_id, n) for n in range(5)).delay()
        assert result.get(WAIT) == [[job_id, [0, 1, 2, 3, 4]]] * 5

    def test_a_chord_with_an_ordered_header_and_body(self, work, add, new_id):
        one, two, body = new_id(), new_id(), new_id()
        header = [work.s(one, {"return": 1}), work.s(two, {"return": 2}), add.s(1, 2)]
        assert chord(header)(work.s(body)).get(WAIT) == [body, [[1, 2, 3]]]

    def test_a_chord_whose_header_was_merged(self, features, work, add, job_id):
        total = features.app.tasks["total"]
        with features.holding(work, job_id):
            result = chord(work.s(job_id, {"return": 5, "n": n}) for n in range(4))(total.s())
        assert result.get(WAIT) == 20

    def test_a_chord_whose_part_failed(self, features, work, new_id):
        total = features.app.tasks["total"]
        header = [work.s(new_id(), {"return": 1}), work.s(new_id(), {"fail": "boom"})]
        result = chord(header)(total.s())
        error = result.get(WAIT, propagate=False)
        assert isinstance(error, ChordError)
        assert "boom" in str(error)

    def test_a_part_more(self, features, work, new_id):
        total = features.app.tasks["total"]
        header = [work.s(new_id(), {"more": 4, "return": 1}), work.s(new_id(), {"return": 2})]
        assert chord(header)(total.s()).get(WAIT) == 1 + 2 + (4 + 1)

    def test_a_run_of_several_is_in_no_chord_and_says_so(self, features, job_id):
        hopeless = features.app.tasks["hopeless"]
        with features.holding(hopeless, job_id):
            hopeless.delay(job_id, "another")
            hopeless.delay(job_id, {"more": 4})
        dead = eventually(lambda: hopeless.ordered_queue.job(job_id).dead)
        assert "not member of any chord" in dead.error


class TestOrder:
    """O2: calls of one id end in the order of their payloads, and what follows them is called so."""

    TOGETHER, LATER = 60, 140

    @pytest.fixture
    def publish(self, features):
        return features.app.tasks["publish"]

    @pytest.fixture
    def second_worker(self, features, work):
        env = {"PROJ_DIRECTORY": features.directory, "PROJ_URL": features.app.conf.broker_url}
        log = features.directory / "second.log"
        node = worker(features.app, log, "-n", "second@test", module="tests.features.proj", **env)
        eventually(lambda: len(set(owners(work))) == 2, 60.0)
        yield node
        node.kill("SIGTERM")
        node.exit_status()

    def far_apart(self, tasks, new_id):
        """An id whose jobs of both tasks are run by different workers."""
        job_id = new_id()
        one, other = (owners(task)[shard_of(job_id, task.queue_spec.shards)] for task in tasks)
        return job_id if one and other and one != other else ""

    def noted(self, features, task, job_id):
        """Numbers that the task was run with, as they came."""
        queue = task.queue_spec.name
        lines = features.noted("run", id=job_id)
        return [n for line in lines if line["queue"] == queue for n in line["payloads"] if isinstance(n, int)]

    def chains(self, features, first, then, job_id):
        total = self.TOGETHER + self.LATER
        calls = [chain(first.si(job_id, n), then.si(job_id, n)) for n in range(total)]
        with features.holding(first, job_id):
            results = [call.delay() for call in calls[: self.TOGETHER]]
        for call in calls[self.TOGETHER :]:
            results.append(call.delay())
            time.sleep(0.002)
        eventually(lambda: len(self.noted(features, then, job_id)) == total, 60.0)
        assert self.noted(features, then, job_id) == list(range(total))
        assert self.noted(features, first, job_id) == list(range(total))
        return [result.parent.id for result in results]

    def test_of_a_chain_with_one_worker(self, features, work, publish, job_id):
        ids = self.chains(features, work, publish, job_id)
        ended = [line["task_id"] for line in features.noted("signal", signal="task_success", task="work")]
        assert [task_id for task_id in ended if task_id in ids] == ids

    def test_of_a_chain_with_two_workers(self, features, work, publish, second_worker, new_id):
        job_id = eventually(lambda: self.far_apart((work, publish), new_id))
        self.chains(features, work, publish, job_id)


def owners(task):
    """Of the task's shards."""
    return [lease.owner for lease in task.ordered_queue._context.store.observe(task.queue_spec.shard_refs())]


class TestOptions:
    @both
    def test_task_id(self, features, work, job_id, merged):
        result = called(features, work, job_id, merged, task_id=f"mine-{job_id}")
        assert result.id == f"mine-{job_id}"
        assert result.get(WAIT) == 7

    def test_headers_and_shadow(self, features, work, job_id):
        result = work.apply_async(
            (job_id, "x"), headers={"tenant": "acme", "dry": False}, shadow="other name"
        )
        result.get(WAIT)
        (run,) = features.noted("run", id=job_id)
        assert (run["headers"]["tenant"], run["headers"]["shadow"]) == ("acme", "other name")
        assert run["headers"]["custom"] == {"tenant": "acme", "dry": False}

    def test_a_call_within_a_run_knows_its_parent(self, features, work, tell, new_id):
        one, two = new_id(), new_id()
        first = work.apply_async((one, "x"), link=work.s(two))
        (run,) = features.wait_for("run", id=two)
        assert run["headers"]["parent_id"] == run["headers"]["root_id"] == first.id

    def test_stamps(self, features, work, job_id):
        signature = work.s(job_id, "x")
        signature.stamp(customer="acme")
        result = signature.apply_async()
        result.get(WAIT)
        (run,) = features.noted("run", id=job_id)
        assert run["headers"]["stamps"] in ({"customer": "acme"}, {"customer": ["acme"]})

    @pytest.mark.parametrize("word", ["countdown", "eta"])
    def test_time_of_a_signature(self, features, work, job_id, word):
        began = time.monotonic()
        when = 0.5 if word == "countdown" else features.app.now() + timedelta(seconds=0.5)
        assert work.s(job_id, "x").set(**{word: when}).delay().get(WAIT) == [job_id, ["x"]]
        assert time.monotonic() - began >= 0.45

    def test_score_of_a_signature(self, features, work, job_id):
        with features.holding(work, job_id):
            group(work.s(job_id, n).set(score=-n) for n in range(3)).apply_async()
        assert features.wait_for("run", 2, id=job_id)[1]["payloads"] == [2, 1, 0]

    @both
    def test_replace(self, features, work, add, job_id, new_id, merged):
        if not merged:
            result = work.delay(job_id, {"replace": 41})
            linked = chain(work.s(new_id(), {"replace": 1}), add.s(10)).delay()
        else:
            with features.holding(work, job_id):
                result = work.apply_async((job_id, {"replace": 41}), score=2e9)
                linked = chain(work.s(job_id, "other"), add.s(10)).delay()
        assert result.get(WAIT) == 42
        assert linked.get(WAIT) == (52 if merged else 12)

    def test_a_message_that_comes_twice_is_one_payload(self, features, work, job_id):
        """As when a worker dies after it has moved a call to the store."""

        def waiting():
            job = work.ordered_queue.job(job_id).waiting
            return [payload.value for payload in job.payloads] if job else []

        with features.holding(work, job_id):
            for payload in ("twice", "twice", "last"):
                result = features.app.send_task("work", (job_id, payload), task_id=f"{payload}-{job_id}")
            eventually(lambda: "last" in waiting())
            assert waiting() == ["twice", "last"]
        assert features.app.AsyncResult(f"twice-{job_id}").get(WAIT) == [job_id, ["twice", "last"]]
        assert result.get(WAIT) == [job_id, ["twice", "last"]]

    def test_a_call_by_name_brings_what_was_asked_of_it(self, features, tell, job_id):
        result = features.app.send_task("work", (job_id, {"return": 3}), link=tell.s(label=job_id))
        assert result.get(WAIT) == 3
        assert features.wait_for("told", label=job_id)[0]["value"] == 3

    def test_a_call_by_name_that_is_wrong_fails_with_its_chord(self, features, client, job_id):
        """Its sender has no code that could have refused it."""
        with pytest.raises(TypeError, match="id"):
            client.send_task("work", ()).get(WAIT)
        with pytest.raises(InvalidCall, match="score='9' is invalid: expected a number"):
            client.send_task("work", (job_id,), headers={"lowkiq": {"score": "9"}}).get(WAIT)
        with pytest.raises(InvalidCall, match="score=9 is invalid: expected no score= in a call of work"):
            client.send_task("work", (job_id,), score=9).get(WAIT)
        header = [
            client.signature("work", args=(job_id, payload)) for payload in ({"return": 1}, "x" * 70000)
        ]
        body = chord(header, app=client)(client.signature("total"))
        with pytest.raises(ChordError, match="PayloadError"):
            client.AsyncResult(body.id).get(WAIT)
