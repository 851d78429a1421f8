"""Reading the reply of a claim: the fast path for usual records, and the order of the jobs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.rules.claims import ClaimRequest
from celery_lowkiq.rules.models import Job, Lease, Payload, QueueSpec, Recorded, ShardRef
from celery_lowkiq.rules.views import NodeReport, NodeUpdate
from celery_lowkiq.store import records
from celery_lowkiq.store.claims import claimed
from celery_lowkiq.store.node_reports import heartbeat_reply
from celery_lowkiq.store.redis_store import RedisStore

numbers = st.from_regex(r"\A[0-9]{1,20}(\.[0-9]{1,20})?\Z") | st.sampled_from(
    ["-1", "1e3", "inf", "nan", ".5", "5."]
)
wholes = st.from_regex(r"\A[0-9]{1,20}\Z")
heads = st.builds(
    "{}{}{}".format, wholes, st.sampled_from(["", "@7", "@", "@x"]), st.sampled_from(["", "#3"])
)


@given(heads, numbers, st.sampled_from(["-1", "0", "-1.002001"]), numbers, st.binary(max_size=8), st.data())
def test_a_usual_record_reads_as_any_other(head, perform_in, retry_count, score, payload, data):
    length = data.draw(st.sampled_from([len(payload), len(payload) + 1, 0, ""]))
    flag = data.draw(st.sampled_from(["", "r", "R", "x"]))
    record = f"{head} {perform_in} {retry_count} 0 {score} {length}{flag} ".encode() + payload
    assert records.parse_processing(b"1", record) == records._any(b"1", record)


@pytest.mark.parametrize(
    "flag, recorded", [(b"", Recorded.NONE), (b"r", Recorded.SOME), (b"R", Recorded.ALL)]
)
@pytest.mark.parametrize("length", [b"2", b""])
def test_a_usual_record_says_which_calls_have_records(length, flag, recorded):
    job = records.parse_processing(b"1", b"7@12 5.5 -1 0 1.5 %s%s ab" % (length, flag))
    assert job == Job("1", (Payload(b"ab", 1.5, recorded),), 5.5, claim=7, payload_count=1, last_call=12)


REPORT = NodeReport("w", "w 1", 1, 10.0, False, False, (), (), 1.0, 1.0, 0.0)
WISH = ClaimRequest(QueueSpec("q"), Lease(ShardRef("q", 0), "me", 1), 1)


def claim(*jobs: tuple[bytes, bytes], now: bytes = b"9"):
    flat = [value for job_id, perform_in in jobs for value in (job_id, b"7 %s -1 0 1 1 x" % perform_in)]
    return claimed(WISH, [now, b"", 7, 0, *flat])


@pytest.mark.parametrize("number, unwanted", [(b"1.5", 0), (None, 0), (7, b"x"), (7, [])])
def test_what_a_lane_compares_is_a_number(number, unwanted):
    reply = [b"9", b"", number, 0, b"a", b"7 5 -1 0 1 1 x", [], [b"a", unwanted]]
    with pytest.raises((TypeError, ValueError)):
        claimed(WISH, reply)


def next_due(reply):
    client = SimpleNamespace(each=lambda *_: ({0: reply}, {}), each_part=lambda *_: ([], []))
    return RedisStore.next_due.__wrapped__(SimpleNamespace(client=client), [ShardRef("q", 0)])


@pytest.mark.parametrize("now", [b"nan", b"inf", b"-inf"])
def test_the_time_of_a_reply_is_one(now):
    """A lane and the thread of the leases calculate with it: one ended for NaN, and with it the worker."""
    assert claim(now=b"9").now == 9.0
    for read in (
        lambda: claim(now=now),
        lambda: heartbeat_reply(NodeUpdate(REPORT, 1.0), {"report": now}),
        lambda: next_due([now, b""]),
    ):
        with pytest.raises(ValueError, match="no time"):
            read()


def test_the_time_of_the_next_job_is_one():
    assert records.parse_time(b"inf") == math.inf
    with pytest.raises(ValueError, match="no time"):
        records.parse_time(b"nan")


def test_jobs_run_by_time_then_by_the_bytes_of_their_ids():
    found = claim((b"b", b"5"), (b"\xff", b"2"), ("😀".encode(), b"2"), (b"a", b"2"), (b"c", b"1"))
    assert [job.id for job in found.jobs] == ["c", "a", "😀", "\udcff", "b"]
    assert not any(job.early for job in found.jobs)


def test_jobs_that_a_new_call_made_due_are_early():
    found = claim((b"a", b"10"), (b"b", b"5"))
    assert [(job.id, job.early) for job in found.jobs] == [("b", False), ("a", True)]
