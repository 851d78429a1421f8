"""What a line about a run says of its batch."""

from __future__ import annotations

import json
import threading

import pytest

from celery_lowkiq.integration.run_logs import describe_batch
from celery_lowkiq.rules.models import Batch, Job, Lease, Payload, QueueSpec, ShardRef


def batch(*ids):
    jobs = tuple(Job(job_id, (Payload(b'"secret"', 1.0),), 1.0) for job_id in ids)
    return Batch(QueueSpec("orders"), Lease(ShardRef("orders", 3), "me", 1), 1, jobs, threading.Event())


def test_a_batch_is_named_by_queue_shard_and_ids():
    assert describe_batch(batch("42")) == {"queue": "orders", "shard": 3, "jobs": 1, "ids": ["42"]}


def test_formatters_get_ids_as_a_list():
    """A formatter for JSON wrote them as one text, ``"'42','43'"``."""
    assert json.loads(json.dumps(describe_batch(batch("42", "43"))))["ids"] == ["42", "43"]


@pytest.mark.parametrize("count, ids", [(5, "'0','1','2','3','4'"), (7, "'0','1','2','3','4',... (2 more)")])
def test_beyond_five_ids_are_counted(count, ids):
    known = describe_batch(batch(*map(str, range(count))))
    assert (known["jobs"], str(known["ids"])) == (count, ids)


@pytest.mark.parametrize("end", ["\n", "\r", "\x1b[31m", "\x85", "\u2028", "\u202e", "\udc80", "\x00"])
def test_no_id_ends_or_colours_the_line(end):
    (line,) = str(describe_batch(batch(f"1{end}[ERROR] forged"))["ids"]).splitlines()
    assert line.isprintable()
    assert "forged" in line
