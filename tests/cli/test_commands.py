"""Each command on a queue with jobs in all states: what it shows, what it does, and its exit status."""

from __future__ import annotations

import json
import math
import re

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.models import Disposition, ShardRef
from celery_lowkiq.rules.views import Finding
from tests.cli import proj
from tests.cli.conftest import end_all, holds
from tests.golden.files import golden, settled

#: A time that is always in the future, and looks the same for ever.
FAR = 9_000_000_000.0
#: What a worker stores of an error whose message has a second line, and speaks to terminals.
WAY = b"""Traceback (most recent call last):
  File "/srv/tasks.py", line 7, in sync_order
    raise ValueError(answer)
ValueError: line
break \x1b[31m"""
NASTY = "evil\u202e\u2028id"


@pytest.fixture
def filled(queue):
    """Dead: d1, d2. Failed, for the second time: f1. Waiting: w1 with two payloads, w2, and a nasty id.
    Held because its id is paused: h1.
    """
    proj.sync_order.perform_async([{"id": f"d{n}", "payload": {"n": n}, "score": n} for n in (1, 2)])
    end_all(proj.sync_order, Disposition.BURY)
    proj.sync_order.perform_async([{"id": "f1", "payload": "late", "score": 5}])
    end_all(proj.sync_order, Disposition.RETRY, WAY, retry_count=1)
    jobs = [
        {"id": "w1", "payload": {"v": 1, "text": "\u00e4\x1b"}, "score": 1},
        {"id": "w1", "payload": 2, "score": 2.5},
    ]
    jobs += [
        {"id": "w2", "payload": "x" * 200, "score": 3},
        {"id": NASTY, "score": 4},
        {"id": "h1", "score": 6},
    ]
    proj.sync_order.perform_async([{**job, "perform_in": FAR} for job in jobs])
    queue.pause(job_id="h1")
    return queue


SHOWN = [
    "stats",
    "stats sync_order",
    "stats --json",
    "jobs sync_order --by perform_in",
    "jobs sync_order --by perform_in --reverse --limit 1",
    "jobs sync_order --by retry_count",
    "jobs sync_order --prefix w1 --json",
    "jobs send_mail",
    "job sync_order w1",
    "job sync_order w1 --json",
    "job sync_order f1",
    "job sync_order d1",
    "job sync_order h1",
    "why sync_order w1",
    "why sync_order f1",
    "why sync_order d1 --json",
    "why sync_order h1",
    "paused sync_order",
    "paused sync_order --json",
    "paused send_mail",
    "held send_mail",
    "stats sync_order --shards",
    "nodes",
    "nodes --json",
    "job sync_order d1 --json",
    "morgue sync_order",
    "morgue sync_order --by updated_at --from -1h --json",
    "failures",
    "failures sync_order",
    "failures sync_order --json",
    "failures sync_order a85184bf405adf39",
    "failures send_mail",
]


@pytest.mark.parametrize("words", SHOWN)
def test_reads(filled, run, words):
    found = run(*words.split())
    assert found.exit_code == 0, found.output
    shown = settled(found.output)
    known = golden(f"cli/{re.sub('[- ]+', '-', words)}.txt", shown)
    if "--json" in words:
        assert holds(*([json.loads(line) for line in text.splitlines()] for text in (known, shown)))
    else:
        assert shown == known


def test_what_is_for_programs_is_json_with_every_job(filled, run):
    lines = [json.loads(line) for line in run("jobs", "sync_order", "--json").stdout.splitlines()]
    assert {line["id"]: line["payload_count"] for line in lines} == {
        "f1": 1,
        "w1": 2,
        "w2": 1,
        NASTY: 1,
        "h1": 1,
    }


def test_a_payload_that_is_no_json_breaks_no_listing(queue, run, monkeypatch):
    monkeypatch.setattr(context_of(proj.app), "codec", Codec("pickle", ["pickle"], 1000))
    around: list[object] = []
    around.append(around)
    payloads = {"c": around, "n": math.nan, "t": {(1, 2): 3}, "w": 1}
    proj.sync_order.perform_async([{"id": name, "payload": payload} for name, payload in payloads.items()])
    lines = run("jobs", "sync_order", "--json").stdout.splitlines()
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert {job["id"]: job["payloads"][0]["value"] for job in found} == {
        "c": "[[...]]",
        "n": "nan",
        "t": "{(1, 2): 3}",
        "w": 1,
    }
    assert run("jobs", "sync_order").exit_code == 0


def test_what_is_being_processed_is_shown_as_what_waits(queue, run):
    proj.sync_order.delay("1")
    store, (shard,) = context_of(proj.app).store, [ShardRef("sync_order", queue.shard_of("1"))]
    store.claim(queue.spec, store.acquire(queue.spec, shard, "me@here", store.observe([shard])[0], 0), 1)
    shown = run("job", "sync_order", "1").output.splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["id", "queue", "shard", "owner", "processing"]
    assert all(re.match(r"\w[\w ]{9}  \S", line) for line in shown[:5]), shown


def test_a_limit_is_told_and_none_is_all(queue, run):
    proj.sync_order.perform_async([{"id": n, "perform_in": FAR} for n in range(250)])
    found = run("jobs", "sync_order", "--limit", "120")
    assert (len(found.stdout.splitlines()), found.stderr) == (121, "there are more than 120: see --limit\n")
    everything = run("jobs", "sync_order", "--limit", "0")
    assert (len(everything.stdout.splitlines()), everything.stderr) == (251, "")


def test_no_text_of_a_job_forges_a_line_or_speaks_to_the_terminal(filled, run):
    for words in ("jobs sync_order", "job sync_order f1", f"job sync_order {NASTY}"):
        for line in run(*words.split(" ")).output.splitlines():
            assert line.isprintable(), line


@pytest.mark.parametrize(
    "words, status, said",
    [
        ("job sync_order nobody", 1, "queue sync_order has no job nobody"),
        (
            "jobs nothing",
            2,
            "queue='nothing' is invalid: expected an ordered queue of the app. "
            "The app has answering, keyed, send_mail, sync_order",
        ),
        ("jobs sync_ordr", 2, "Did you mean 'sync_order'?"),
        ("jobs sync_order --reverse", 2, "by='id' has no order"),
        ("jobs sync_order --by perform_in --from lunch", 2, "'lunch' is invalid: expected now"),
        ("stats --watch nan", 2, "nan is invalid: expected seconds, at most 86400"),
        ("stats --watch inf", 2, "inf is invalid: expected seconds, at most 86400"),
        ("morgue sync_order --by perform_in", 2, "Invalid value for '--by'"),
        (
            "requeue sync_order",
            2,
            "expected one of: IDS, --all, --error (or --failure, --since, --prefix, --state, --age), --force",
        ),
        ("requeue sync_order --all --error x", 2, "expected one of: IDS"),
        (
            "requeue sync_order --limit 5",
            2,
            "--rate and --limit go with --error, --failure, --since, --prefix, --state or --age",
        ),
        (
            "requeue sync_order --all --rate 5/s",
            2,
            "--rate and --limit go with --error, --failure, --since, --prefix, --state or --age",
        ),
        (
            "requeue sync_order --all --dry-run",
            2,
            "--dry-run goes with --error, --failure, --since, --prefix, --state or --age",
        ),
        ("requeue sync_order --since lunch", 2, "since='lunch' is invalid: expected an age such as 30min"),
        ("requeue sync_order --error x --rate fast", 2, "rate='fast' is invalid: expected a rate such as"),
        ("failures sync_order 0123456789abcdef", 1, "none"),
        ("requeue sync_order d1 --all", 2, "expected one of: IDS, --all"),
        ("requeue sync_order nobody", 1, "requeued 0 dead jobs"),
        ("delete sync_order --all --yes", 2, "expected one of: IDS, --failed, --failed --error (or"),
        ("delete sync_order --failed --morgue --yes", 2, "expected one of: IDS, --failed"),
        ("delete sync_order nobody --yes", 1, "deleted 0 waiting jobs"),
        ("bury sync_order", 2, "expected one of: IDS, --failed"),
        ("bury sync_order nobody --yes", 1, "buried 0 waiting jobs"),
        ("run-now sync_order", 2, "expected one of: IDS, --all"),
        (
            "run-now sync_order nobody",
            1,
            "of queue sync_order\nThere is no job nobody",
        ),
        ("quiet nobody@here", 1, "nobody@here does not answer"),
        ("push sync_order 42 text", 2, "PAYLOAD is not JSON"),
        (f"push sync_order 42 {'[' * 100_000}", 2, "PAYLOAD has too many levels"),
        ("push sync_order 42 1 --at +99999999999999999999d", 2, "is longer than any time"),
        (f"jobs sync_order --by perform_in --from -{'9' * 400}s", 2, "is longer than any time"),
        ("push sync_order 42 NaN", 2, "cannot be serialized as json"),
        ("push sync_order 42 1 --at 1e12", 2, "looks like milliseconds"),
        ("why sync_order nobody", 1, "There is no job nobody: it is done, or was deleted, or never pushed."),
        ("pause sync_order --shard 1 1", 2, "expected one of: QUEUE alone, --shard N, IDS"),
        ("pause sync_order --shard 4", 2, "shard"),
        ("pause sync_order h1", 1, "paused 0 ids of queue sync_order"),
        ("resume sync_order", 1, "queue sync_order: not paused"),
        ("hold send_mail d1", 2, "queue 'send_mail' drops payloads, by keep=, latest= or drop_stale="),
        ("go-on sync_order d1 --yes", 1, "released 0 held ids of queue sync_order"),
        ("resume sync_order --all-ids h1", 2, "expected one of: QUEUE alone"),
        ("unknown", 2, "No such command 'unknown'"),
    ],
)
def test_refusals(filled, run, words, status, said):
    before = filled.stats()
    found = run(*words.split())
    assert (found.exit_code, said in found.output) == (status, True), found.output
    assert "Traceback" not in found.output
    assert filled.stats() == before


@pytest.mark.parametrize(
    "words, question",
    [
        ("delete sync_order w1 w2", "Delete: 2 waiting jobs of queue sync_order?"),
        ("delete sync_order -", "Delete: the waiting jobs of queue sync_order from stdin?"),
        ("delete sync_order --failed", "Delete all: 1 failed job of queue sync_order?"),
        ("delete sync_order --morgue --all", "Delete all: 2 dead jobs of queue sync_order?"),
        ("bury sync_order w1", "Bury: 1 waiting job of queue sync_order?"),
        ("go-on sync_order w1", "Let the id go on: 1 id of queue sync_order?"),
        ("bury sync_order --failed", "Bury all: 1 failed job of queue sync_order?"),
        ("requeue sync_order --all --force", "Force requeue all: 2 dead jobs of queue sync_order?"),
        ("requeue sync_order --all", "Requeue all: 2 dead jobs of queue sync_order?"),
        ("run-now sync_order --all", "Run all now: 5 waiting jobs of queue sync_order?"),
    ],
)
def test_what_destroys_is_refused_where_nobody_can_be_asked(filled, run, words, question):
    before = filled.stats()
    found = run(*words.split(), stdin="y\n")
    assert found.exit_code == 2
    assert f"{question} Not a terminal: pass --yes to confirm" in found.stderr
    assert filled.stats() == before


def test_dead_jobs_go_back(filled, run):
    found = run("requeue", "sync_order", "d1", "nobody")
    assert (found.exit_code, found.stdout) == (0, "requeued 1 dead job of queue sync_order\n")
    assert filled.job("d1").waiting.retry_count == -1
    assert (
        run("requeue", "sync_order", "--all", "--yes").stdout == "requeued 1 dead job of queue sync_order\n"
    )
    assert filled.stats().morgue_length == 0


def test_jobs_that_match_go_back(filled, run):
    (failing,) = [
        json.loads(line)["fingerprint"]
        for line in run("failures", "sync_order", "--json").stdout.splitlines()
        if json.loads(line)["failing"]
    ]
    assert run("bury", "sync_order", "--failed", "--error", "KeyError", "-y").stdout.startswith("buried 0 ")
    buried = run("bury", "sync_order", "--failed", "--failure", failing, "-y")
    assert buried.stdout == "buried 1 failed job of queue sync_order\n"
    wanted = "--error", "ValueError: l*", "--since", "2h"
    preview = run("requeue", "sync_order", *wanted, "--dry-run")
    assert (preview.exit_code, preview.stdout) == (
        0,
        "1 dead jobs match: searched 3 of 3.\n",
    )
    assert filled.stats().morgue_length == 3
    found = run("requeue", "sync_order", *wanted, "--limit", "10", "--rate", "50/s")
    assert (found.exit_code, found.stdout) == (0, "requeued 1 dead job of queue sync_order\n")
    assert filled.job("f1").waiting.retry_count == -1
    assert "Not a terminal" in run("delete", "sync_order", "--morgue", "--since", "1h").stderr
    assert run("delete", "sync_order", "--morgue", "--since", "1h", "-y").stdout.startswith("deleted 2 dead")


@pytest.mark.parametrize("which", ["1", "--all"])
def test_what_is_stale_goes_back_by_force_only(queue, run, which):
    proj.send_mail.apply_async(("1", "old"), score=1)
    end_all(proj.send_mail, Disposition.BURY)
    proj.send_mail.apply_async(("1", "new"), score=2)
    end_all(proj.send_mail, Disposition.DONE)
    assert run("requeue", "send_mail", which, "--yes").stdout == "requeued 0 dead jobs of queue send_mail\n"
    forced = run("requeue", "send_mail", which, "--force", "--yes")
    assert (forced.exit_code, forced.stdout) == (0, "requeued 1 dead job of queue send_mail\n")


def test_ids_come_from_stdin(filled, run):
    found = run("requeue", "sync_order", "-", stdin="d1\nd2\r\n\n")
    assert found.stdout == "requeued 2 dead jobs of queue sync_order\n"
    ids = "".join(
        f"{json.loads(line)['id']}\n" for line in run("jobs", "sync_order", "--json").stdout.splitlines()
    )
    assert "deleted 7 waiting jobs" in run("delete", "sync_order", "-", "--yes", stdin=ids).stdout


def test_failed_jobs_are_buried_or_deleted(filled, run):
    assert (
        run("bury", "sync_order", "--failed", "--yes").stdout == "buried 1 failed job of queue sync_order\n"
    )
    assert filled.job("f1").dead is not None
    run("requeue", "sync_order", "f1")
    end_all(proj.sync_order, Disposition.RETRY)
    assert "deleted 1 failed job" in run("delete", "sync_order", "--failed", "-y").stdout
    assert filled.stats().length == 4


def test_dead_jobs_are_deleted(filled, run):
    assert "deleted 1 dead job" in run("delete", "sync_order", "--morgue", "d1", "--yes").stdout
    assert "deleted 1 dead job" in run("delete", "sync_order", "--morgue", "--all", "--yes").stdout


def test_some_jobs_are_buried_or_become_due(filled, run):
    assert run("bury", "sync_order", "w1", "--yes").output == "buried 1 waiting job of queue sync_order\n"
    assert (
        run("run-now", "sync_order", "-", stdin="w1\nw2\n").output
        == "made due 1 waiting job of queue sync_order\n"
    )
    assert filled.job("w2").waiting.perform_in < FAR


def test_all_becomes_due(filled, run):
    assert (
        run("run-now", "sync_order", "--all", "--yes").stdout
        == "made due 5 waiting jobs of queue sync_order\n"
    )
    assert filled.jobs("perform_in", minimum=FAR).items == ()


def test_pause_and_resume(filled, run):
    for part in ([], ["--shard", "2"], ["w1", "w2"]):
        assert run("pause", "sync_order", *part).output.startswith("paused ")
        assert run("pause", "sync_order", *part).exit_code == 1
    shown = [json.loads(line) for line in run("paused", "sync_order", "--json").stdout.splitlines()]
    assert [next(iter(line.items())) for line in shown[:3]] == [
        ("queue", "sync_order"),
        ("shard", 2),
        ("id", "h1"),
    ]
    assert {line["id"] for line in shown[2:]} == {"h1", "w1", "w2"}
    assert filled.stats().paused_jobs == 3
    for part in ([], ["--shard", "2"], ["w1"]):
        assert run("resume", "sync_order", *part).exit_code == 0
    assert run("resume", "sync_order", "--all-ids").output == "resumed 2 paused ids of queue sync_order\n"
    assert run("paused", "sync_order").output == "none\n"


def test_hold_and_go_on(queue, run):
    for job_id in ("1", "2"):
        assert run("push", "sync_order", job_id, "1").exit_code == 0
    assert run("bury", "sync_order", "1", "2", "--yes").exit_code == 0
    assert run("hold", "sync_order", "1", "2", "3").stdout == "held 2 dead jobs of queue sync_order\n"
    assert run("push", "sync_order", "1", "2").exit_code == 0
    assert "It waits behind a dead payload" in run("why", "sync_order", "1").stdout
    assert "held        by a dead payload" in run("job", "sync_order", "1").stdout
    shown = [json.loads(line) for line in run("held", "sync_order", "--json").stdout.splitlines()]
    assert [(one["id"], one["paused"]) for one in shown] == [("1", False), ("2", False)]
    assert run("pause", "sync_order", "2").exit_code == 0
    assert run("held", "sync_order").stdout.splitlines()[1].endswith("UTC, and paused")
    assert "2 ids are held by dead payloads" in run("doctor").stdout
    (header, row, *_) = run("stats", "sync_order").stdout.splitlines()
    assert row.split()[header.split().index("paused")] == "1"
    assert row.endswith("2 ids held")
    assert run("go-on", "sync_order", "1", "--yes").stdout == "released 1 held id of queue sync_order\n"
    assert run("requeue", "sync_order", "2").exit_code == 0
    assert run("held", "sync_order").output == "none\n"


def test_push(queue, run):
    found = run("push", "sync_order", "42", '{"b": 1, "a": "\u00e4"}', "--score", "7", "--at", str(FAR))
    assert (found.exit_code, len(found.stdout)) == (0, 37)
    job = queue.job("42").waiting
    assert [(p.value, p.score) for p in job.payloads] == [({"a": "\u00e4", "b": 1}, 7.0)]
    assert job.perform_in == FAR


def test_push_reads_stdin_and_spans(queue, run):
    assert run("push", "sync_order", "42", "-", "--at", "+3h", stdin='"text"\n').exit_code == 0
    job = queue.job("42").waiting
    assert job.payloads[0].value == "text"
    assert 10_000 < job.perform_in - job.payloads[0].score < 11_000


def test_push_for_a_task_that_finds_its_ids_itself(run):
    assert run("push", "keyed", "42", '{"id": 42}').exit_code == 0
    assert proj.keyed.ordered_queue.job("42").waiting is not None


def test_push_for_a_task_whose_calls_have_arguments(server):
    words = ["-A", "tests.cli.by_proj:app", "lowkiq", "push", "save_order", "42", "{}"]
    found = CliRunner().invoke(celery, words, prog_name="celery")
    assert found.exit_code == 2
    assert (
        "push: save order has by=, so its calls have arguments, (order_id, status='paid'): "
        "celery -A tests.cli.by_proj:app call 'save order' --args='[...]'\n"
    ) in found.output


def test_the_doctor_says_what_to_do(filled, run):
    found = run("doctor")
    assert found.exit_code == 1
    assert (
        "\nerror    queue sync_order: No worker serves it; 5 jobs with 6 calls wait.\n         Start a "
        in found.stdout
    )
    findings = [json.loads(line) for line in run("doctor", "--json").stdout.splitlines()]
    assert {"connection", "maxmemory-policy", "queue sync_order"} <= {line["subject"] for line in findings}
    assert {"level", "subject", "text", "advice"} == set(findings[0])


def test_a_warning_of_the_doctor_is_no_failure(run, monkeypatch):
    """F9: a script that acts on the status acted on each warning."""
    monkeypatch.setattr(Inspector, "doctor", lambda self: (Finding("warning", "all", "could be better"),))
    assert run("doctor").exit_code == 0


def test_the_doctor_is_content(run, monkeypatch):
    monkeypatch.setattr(Inspector, "doctor", lambda self: (Finding("ok", "all", "is well"),))
    found = run("doctor")
    assert (found.exit_code, found.output) == (0, "ok       all: is well\n")


def test_an_interrupted_action_says_how_far_it_came(filled, run, monkeypatch):
    def slow(queue, ids, progress):
        progress(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(OrderedQueue, "requeue", slow)
    found = run("requeue", "sync_order", "d1", "d2")
    assert found.exit_code == 1
    said = "interrupted: requeued 1 dead job of queue sync_order, and at most one step more"
    assert found.stderr.startswith(f"{said}; the others stay as they were\n")
    assert found.stdout == ""


def test_stats_show_held_ids(filled, run):
    filled.hold(["d1", "d2"])
    assert "2 ids held" in run("stats", "sync_order").stdout
