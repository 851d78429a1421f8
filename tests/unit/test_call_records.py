"""Which calls are kept, and what of them; and how signatures keep their arguments. No Redis."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_lowkiq import JobsFailed, PayloadError, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.records import CallRecord, limits_of, make_record, usable
from celery_lowkiq.rules.errors import UndecodablePayload
from tests.unit.lanes import read_record


def make(backend=None, **options):
    app = Celery("unit", broker="redis://localhost:1/0", backend=backend, set_as_current=False)

    @ordered_task(app=app, name="sync", **options)
    def sync(payloads_by_id):
        """Never run here."""

    return sync


def noted(task, embed=None, track=False, **headers):
    usual = {"lang": "py", "task": "sync", "id": "a", "root_id": "a", "parent_id": None, "retries": 0}
    usual |= {"argsrepr": "()", "origin": "me", "timelimit": [None, None], "ignore_result": None}
    return make_record(task, {**usual, **headers}, embed, {"reply_to": "queue"}, track)


@pytest.mark.parametrize("given", [["60", 5], [[5], 5], [True, 5], [0, 5], [1], 5, {"a": 1, "b": 2}])
def test_what_are_no_time_limits_in_a_record_are_none(given):
    """Of an older version, which did not check what it stored."""
    assert limits_of(CallRecord("a", usable({"timelimit": given}))) == (None, None)


class TestWho:
    @pytest.mark.parametrize(
        "backend, options, headers, kept",
        [
            (None, {}, {}, False),
            ("cache+memory://", {}, {}, True),
            ("cache+memory://", {"ignore_result": True}, {}, False),
            ("cache+memory://", {"ignore_result": True}, {"ignore_result": False}, True),
            ("cache+memory://", {}, {"ignore_result": True}, False),
            ("cache+memory://", {"ignore_result": True, "store_errors_even_if_ignored": True}, {}, True),
            (None, {"ignore_result": True, "store_errors_even_if_ignored": True}, {}, False),
            (None, {}, {"parent_id": "p", "root_id": "r", "group": "g", "group_index": 0}, False),
            (None, {}, {"expires": "2030-01-01T00:00:00+00:00"}, True),
            (None, {}, {"shadow": "other"}, True),
            (None, {}, {"stamped_headers": ["x"], "stamps": {"x": 1}}, True),
            (None, {}, {"traceparent": "00-1"}, True),
        ],
    )
    def test_a_record_is_kept_when_somebody_will_ask(self, backend, options, headers, kept):
        assert (noted(make(backend, **options), **headers) is not None) is kept

    def test_links_and_chords_are_reasons(self):
        assert noted(make(), {"callbacks": None, "errbacks": [], "chain": None, "chord": None}) is None
        links = {name: [{"task": "next"}] for name in ("callbacks", "errbacks", "chain")}
        for name, value in {**links, "chord": {"task": "next"}}.items():
            assert noted(make(), {name: value}).embed == {name: value}

    def test_all_are_kept_when_calls_are_tracked(self):
        assert noted(make(), track=True) == CallRecord("a")


class TestWhat:
    def test_only_what_is_not_as_always(self):
        note = noted(make("cache+memory://"), group="g", group_index=0, parent_id="p", root_id="r")
        assert note.headers == {"group": "g", "group_index": 0, "parent_id": "p", "root_id": "r"}

    def test_headers_of_the_users_own_whatever_they_say(self):
        own = {"flag": False, "n": 0, "text": "", "none": None, "tenant": "acme"}
        assert noted(make(), shadow=None, expires=None, group="", stamps={}, **own).headers == own

    def test_ignore_result_where_it_differs_from_the_tasks(self):
        assert noted(make("cache+memory://"), track=True).headers == {}
        assert noted(make("cache+memory://"), track=True, ignore_result=True).headers == {
            "ignore_result": True
        }
        quiet = make("cache+memory://", ignore_result=True)
        assert noted(quiet, ignore_result=False).headers == {"ignore_result": False}

    def test_the_queue_of_replies_only_for_the_backend_that_has_one(self):
        assert "reply_to" not in noted(make("cache+memory://")).headers
        assert noted(make("rpc://")).headers["reply_to"] == "queue"

    def test_a_record_is_short_and_comes_back(self):
        codec = context_of(make().app).record_codec
        for note in (
            CallRecord("a"),
            CallRecord("a", {"x": 1}),
            CallRecord("a", {}, {"chord": {"task": "b"}}),
        ):
            assert read_record(note.dump(codec), codec) == note
        assert CallRecord("a").dump(codec) == b'["a"]'

    @pytest.mark.parametrize("data", [b"\xff", b"[1,2,3,4,5]", b"7"])
    def test_other_bytes_are_no_record(self, data):
        with pytest.raises(UndecodablePayload):
            read_record(data, context_of(make().app).record_codec)

    def test_headers_that_cannot_be_stored_are_refused(self):
        with pytest.raises(PayloadError, match="headers, links or chord of call a"):
            CallRecord("a", {"x": object()}).dump(context_of(make().app).record_codec)


class TestSignatures:
    @pytest.mark.parametrize(
        "args, kwargs, named",
        [
            ((), {}, {}),
            ((1,), {}, {"id": 1}),
            ((1, "x"), {}, {"id": 1, "payload": "x"}),
            ((1,), {"payload": "x"}, {"id": 1, "payload": "x"}),
        ],
    )
    def test_arguments_are_kept_by_name(self, args, kwargs, named):
        signature = make().s(*args, **kwargs)
        assert (signature.args, signature.kwargs) == ((), named)
        assert make().si(*args, **kwargs).kwargs == named

    @pytest.mark.parametrize(
        "args, kwargs, words",
        [
            ((1, 2, 3), {}, "takes id and payload, got 3"),
            ((1,), {"id": 2}, "multiple values for argument 'id'"),
        ],
    )
    def test_wrong_ones_are_refused(self, args, kwargs, words):
        with pytest.raises(TypeError, match=words):
            make().s(*args, **kwargs)

    def test_what_comes_from_before_is_the_payload(self):
        header = make().__header__
        assert header({"result": 1}, id="42") == ("42", {"result": 1})
        assert header("42", "x") == ("42", "x")
        assert header("42", payload="x") == ("42", "x")
        with pytest.raises(TypeError, match=r"write sync\.si"):
            header({"result": 1}, id="42", payload="own")
        with pytest.raises(TypeError):
            header({"result": 1}, {"more": 2}, id="42")

    def test_of_a_task_with_a_key(self):
        keyed = make(key=lambda payload: payload["id"])
        assert keyed.s({"id": 1}).kwargs == {"payload": {"id": 1}}
        assert keyed.s().kwargs == {}
        assert keyed.__header__({"id": 1}) == (None, {"id": 1})
        with pytest.raises(TypeError, match=r"write sync\.si"):
            keyed.__header__({"result": 1}, payload={"id": 1})


class TestJobsFailed:
    def test_only_exceptions_are_allowed(self):
        with pytest.raises(TypeError, match="an exception for each id"):
            JobsFailed({"1": "boom"})

    def test_it_says_who_failed(self):
        assert str(JobsFailed({"1": ValueError("boom")})) == "failed jobs: '1': ValueError('boom')"
        assert str(JobsFailed({})) == "failed jobs: none was named"

    def test_a_backend_may_keep_and_rebuild_it(self):
        import pickle

        failed = JobsFailed({"1": ValueError("boom")})
        assert str(pickle.loads(pickle.dumps(failed))) == str(failed)
        assert str(JobsFailed(*failed.args)) == str(failed)
