"""Bad input gets a clear error at the call, and nothing of the call is stored."""

from __future__ import annotations

import enum
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from numbers import Integral
from uuid import UUID

import pytest

from celery_lowkiq.integration.calls import bulk, read_delay, read_id, read_score, read_time, single
from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call

UTC = timezone.utc
JSON = Codec("json", None, 1000)


@pytest.mark.parametrize(
    "given_id, text",
    [
        ("42", "42"),
        (42, "42"),
        (-1, "-1"),
        (UUID(int=1), str(UUID(int=1))),
        ("{}:*", "{}:*"),
        ("é" * 128, "é" * 128),
    ],
)
def test_ids(given_id, text):
    assert read_id(given_id) == text


@pytest.mark.parametrize(
    "given_id, message",
    [
        (True, "expected a str, an int or a UUID"),
        (1.5, "expected a str, an int or a UUID"),
        (None, "expected a str, an int or a UUID"),
        (b"a", "expected a str, an int or a UUID"),
        ("", "not 0"),
        ("x" * 257, "1 to 256 bytes of UTF-8, not 257"),
        ("é" * 129, "not 258"),
        ("a\nb", "control character"),
        ("a\0", "control character"),
        ("\x7f", "control character"),
        ("a\x85", "control character"),
        ("\ud800", "UTF-8 can encode"),
    ],
)
def test_refused_ids(given_id, message):
    with pytest.raises(InvalidCall, match=message):
        read_id(given_id)


def test_a_member_of_an_enum_is_its_value():
    """Else callers that write the value, or run on another Python, would mean another job."""
    text = enum.Enum("Text", {"A": "a"}, type=str)
    number = enum.IntEnum("Number", {"ONE": 1})
    assert (read_id(text.A), read_id(number.ONE)) == ("a", "1")


class Int64:
    """An integer of another library, such as numpy's."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value

    def __float__(self):
        return float(self.value)


Integral.register(Int64)


def test_integers_of_other_libraries():
    assert read_score(Int64(7), UTC) == 7.0
    with pytest.raises(InvalidCall, match="no number that a double holds exactly"):
        read_score(Int64(1_795_240_471_760_889_393), UTC)


def test_an_integer_of_more_digits_than_python_prints_is_no_id():
    for value in (10**5000, -(10**5000)):
        with pytest.raises(InvalidCall, match="not 257"):
            read_id(value)


def test_errors_are_short_whatever_the_value():
    class Mute:
        def __repr__(self):
            raise RuntimeError

    for value in (10**5000, Mute(), "x" * 100_000):
        with pytest.raises(InvalidCall) as raised:
            read_score(value, UTC)
        assert len(str(raised.value)) < 300


def test_scores():
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert read_score(None, UTC) is None
    assert read_score(7, UTC) == 7.0
    assert read_score(-1.5, UTC) == -1.5
    assert read_score(2**53, UTC) == 2.0**53
    assert read_score(moment, UTC) == moment.timestamp()


@pytest.mark.parametrize(
    "score",
    [float("nan"), float("inf"), "1", True, 2**53 + 1, 1_795_240_471_760_889_393, 10**400, Decimal(1)],
)
def test_refused_scores(score):
    with pytest.raises(InvalidCall, match="score="):
        read_score(score, UTC)


def test_times():
    moment = datetime(2026, 1, 1, 12)
    assert read_time("eta", 1700000000.5, UTC) == 1700000000.5
    for text in ("2026-01-01T12:00", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00+01:00"):
        assert read_time("eta", text, UTC) == moment.replace(tzinfo=UTC).timestamp()
    assert read_time("eta", moment, UTC) == moment.replace(tzinfo=UTC).timestamp()
    assert (
        read_time("eta", moment, timezone(timedelta(hours=2)))
        == moment.replace(tzinfo=UTC).timestamp() - 7200
    )


@pytest.mark.parametrize(
    "when, message",
    [
        (1700000000000, "milliseconds: divide by 1000"),
        (float("nan"), "expected a finite number"),
        (float("-inf"), "expected a finite number"),
        (-1, "seconds from 0"),
        ("soon", "expected a Unix time, a datetime, a timedelta or ISO 8601 text"),
        (1e300, "year 2286"),
        (True, "expected a number or a datetime"),
    ],
)
def test_refused_times(when, message):
    with pytest.raises(InvalidCall, match=message):
        read_time("perform_in", when, UTC)


def test_delays():
    assert read_delay(5) == 5.0
    assert read_delay(timedelta(minutes=1)) == 60.0
    assert read_delay(-3) == 0.0
    for wrong in (float("nan"), "5", True, 1e12):
        with pytest.raises(InvalidCall, match="countdown="):
            read_delay(wrong)


def test_a_single_call_takes_celerys_words():
    assert single(1, "p", tz=UTC) == Call("1", payload="p")
    assert single(1, "p", countdown=5, tz=UTC) == Call("1", payload="p", delay=5.0)
    assert single(1, "p", eta=5, score=2, tz=UTC) == Call("1", payload="p", score=2.0, perform_in=5.0)
    with pytest.raises(InvalidCall, match="exclude each other"):
        single(1, "p", eta=5, countdown=5, tz=UTC)


def test_a_bulk_call_takes_lowkiqs_words_and_defaults():
    jobs = [
        {"id": 0},
        {"id": 1, "payload": {"attr": "v1"}},
        {"id": 2, "score": 3, "perform_in": timedelta(seconds=9)},
    ]
    assert bulk(iter(jobs), JSON, UTC) == [
        Call("0", b'""'),
        Call("1", b'{"attr":"v1"}', payload={"attr": "v1"}),
        Call("2", b'""', 3.0, None, 9.0),
    ]


@pytest.mark.parametrize(
    "job, message",
    [
        ({}, "job 1 of the list: no 'id'"),
        ({"id": 1, "scor": 2}, "job 1 of the list: unknown key 'scor'"),
        ({"id": 1, "perform_in": 1700000000000}, "job 1 of the list: perform_in=1700000000000"),
        ("x", "job 1 of the list: a job is a dict"),
        ({"id": None}, "job 1 of the list: id=None"),
        ({"id": 1, "payload": {2}}, "job 1 of the list: the payload cannot be serialized as json"),
        ({"id": 1, "payload": {2}, "score": 3}, "job 1 of the list: the payload cannot be serialized"),
    ],
)
def test_a_bad_job_of_a_list_is_named(job, message):
    with pytest.raises(InvalidCall, match=message):
        bulk([{"id": 0}, job], JSON, UTC)


def test_a_key_finds_the_ids_of_a_list():
    jobs = [{"payload": {"n": 1}}, {"id": 2, "payload": {"n": 1}}]
    assert [call.id for call in bulk(jobs, JSON, UTC, lambda payload: payload["n"])] == ["1", "2"]
    for wrong, words in (
        ({"payload": {}}, "key= finds no id in payload={}: KeyError"),
        ({"score": 1}, "no 'id'"),
    ):
        with pytest.raises(InvalidCall, match=f"job 1 of the list: {words}"):
            bulk([{"id": 0}, wrong], JSON, UTC, lambda payload: payload["n"])


@pytest.mark.parametrize("jobs", [{"id": 1}, "ab", 5, None])
def test_a_bulk_call_wants_a_list(jobs):
    with pytest.raises(InvalidCall, match="takes a list of jobs"):
        bulk(jobs, JSON, UTC)
