"""The lines of a dump say what there was, to the byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.rules.dump_format import (
    DumpedCall,
    End,
    Entry,
    Header,
    State,
    end_line,
    entry_line,
    header_line,
    read_line,
)
from celery_lowkiq.rules.errors import BadDump
from celery_lowkiq.rules.models import Payload, Recorded

SCORES = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(st.none() | st.booleans() | SCORES | st.integers() | st.text(), st.lists, max_leaves=5)
DATA = st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode())
PAYLOADS = st.tuples(DATA, SCORES, st.sampled_from(Recorded)).map(lambda parts: Payload(*parts))
IDS = st.text(min_size=1) | st.binary(min_size=1).map(lambda data: data.decode("utf-8", "surrogateescape"))
JOBS = st.builds(
    Entry,
    st.sampled_from([State.WAITING, State.PROCESSING, State.DEAD]),
    IDS,
    SCORES,
    st.integers(-1, 1000),
    st.none() | st.binary(),
    st.lists(PAYLOADS).map(tuple),
    priority=st.integers(0, 9),
)
CALLS = st.builds(
    lambda job_id, calls: Entry(State.CALLS, job_id, calls=tuple(calls)),
    IDS,
    st.lists(st.builds(DumpedCall, st.binary(min_size=10, max_size=10), st.binary())),
)


@given(number=st.integers(1, 2**53), entry=JOBS | CALLS)
def test_an_entry_comes_back_the_same(number, entry):
    line = entry_line(number, entry)
    assert line.count(b"\n") == 1
    assert read_line(line) == (number, entry)


@pytest.mark.parametrize("line", [Header("0" * 32, "q", 5, "json", 12), End(3)])
def test_header_and_end_come_back_the_same(line):
    text = header_line(line) if isinstance(line, Header) else end_line(line)
    assert read_line(text) == (0, line)


@pytest.mark.parametrize("data", [b"1", b'{"a":1,"b":[1.5,null]}', '"\u00e4\u0437"'.encode()])
def test_json_stays_readable(data):
    (payload,) = json.loads(entry_line(1, Entry(State.WAITING, "1", payloads=(Payload(data, 1.0),))))[
        "payloads"
    ]
    assert payload == {"score": 1.0, "value": json.loads(data)}


@given(line=st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_other_line_is_refused(line):
    with pytest.raises(BadDump):
        read_line(line)
