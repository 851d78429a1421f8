"""``acl`` and ``audit``: who may do what in Redis, and who did what."""

from __future__ import annotations

import getpass
import json

import pytest
import redis

from celery_lowkiq import track
from celery_lowkiq.integration.app import AppContext, context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.store.acl import ROLES
from celery_lowkiq.store.resharding import Migrations
from tests.cli import proj
from tests.cli.test_repair import broken_shard


@pytest.mark.parametrize("role", ROLES)
def test_the_rules_are_a_command_that_redis_takes(run, server, role):
    with redis.Redis(unix_socket_path=server.socket_path) as admin:
        words = run("acl", "--role", role, "--queue", "sync_order", "--user", "anybody").output.split()
        assert words[:3] == ["ACL", "SETUSER", "anybody"]
        for _ in range(2):
            admin.execute_command(*words)
        rights = admin.execute_command("ACL", "GETUSER", "anybody")
        assert rights
        admin.execute_command("ACL", "DELUSER", "anybody")


@pytest.mark.parametrize("given", [("--queue", "a} ~* &* {b"), ("--queue", "a\nACL"), ("--user", "a nopass")])
def test_a_name_adds_no_rule(run, given):
    refused = run("acl", "--role", "caller", *given)
    assert refused.exit_code == 2
    assert "is invalid: expected" in refused.output
    assert "SETUSER" not in refused.output


def test_the_version_of_redis_matters(run):
    assert "+script|load" in run("acl", "--role", "caller", "--redis", "7.2").output
    assert "+script|load" not in run("acl", "--role", "caller", "--redis", "6.2").output
    assert "+asking" in run("acl", "--role", "caller", "--cluster").output
    refused = run("acl", "--role", "caller", "--redis", "new")
    assert refused.exit_code == 2
    assert "expected a version" in refused.output


def test_the_prefix_of_the_keys_begins_the_rules(run, monkeypatch):
    monkeypatch.setitem(context_of(proj.app).settings.redis_options, "global_keyprefix", "stage:")
    words = run("acl", "--role", "operator").output.split()
    named = [word for word in words if word.startswith(("~", "(~", "&"))]
    assert len(named) > 40
    assert all(word.lstrip("(~&").startswith("stage:lowkiq:") for word in named)


def unusable():
    raise ConfigurationError("lowkiq_url is invalid")


@pytest.mark.parametrize(
    "parameters, given, expected",
    [
        (lambda: {"cluster": [("a", 6379)]}, (), True),
        (lambda: {"cluster": [("a", 6379)]}, ("--no-cluster",), False),
        (lambda: {"host": "a"}, (), False),
        (unusable, (), False),
    ],
)
def test_the_url_of_a_cluster_adds_the_commands_of_one(run, monkeypatch, parameters, given, expected):
    """They were left out, and clients were refused `cluster|slots`."""
    monkeypatch.setattr(AppContext, "redis_parameters", lambda _: parameters())
    written = run("acl", "--role", "caller", "--redis", "7.2", *given)
    assert written.exit_code == 0
    assert ("+cluster|slots" in written.output) == expected


def test_a_queue_of_the_app_is_found_by_the_last_part_of_its_name(run, monkeypatch):
    """The rules of a name that no queue has would permit nothing."""
    monkeypatch.setattr(Inspector, "tasks", lambda _: dict.fromkeys(("proj.slow", "a.twin", "b.twin")))
    short, full, foreign, both = (
        run("acl", "--role", "caller", "--queue", name) for name in ("slow", "proj.slow", "theirs", "twin")
    )
    assert short.stdout == full.stdout
    assert "{proj.slow:[0-9]*}" in full.stdout
    assert (short.stderr, full.stderr) == ("slow is queue proj.slow\n", "")
    assert "{theirs:[0-9]*}" in foreign.stdout
    assert foreign.stderr == "the app has no queue theirs: the rules have this name as it is\n"
    assert (both.exit_code, "Several end so" in both.output) == (2, True)


def test_each_change_of_a_command_is_in_the_audit_log(run, queue):
    assert "none" in run("audit").output
    run("pause", "sync_order")
    run("delete", "sync_order", "nobody", "--yes")
    lines = run("audit", "--limit", "10").output.splitlines()
    assert len(lines) == 4
    assert "delete done:" in lines[0]
    assert f"user={getpass.getuser()!r} from='command line of " in lines[0]
    assert "ids=['nobody'] jobs=0" in lines[0]
    (entry,) = map(json.loads, run("audit", "--limit", "1", "--json").output.splitlines())
    assert (entry["action"], entry["state"], entry["jobs"]) == ("delete", "done", 0)


def changes(run):
    """The entries of the audit log, the first one first."""
    lines = run("audit", "--json").output.splitlines()
    return [json.loads(line) for line in reversed(lines)]


@pytest.mark.parametrize(
    ("action", "command"),
    [
        ("bury", ("bury", "sync_order", "42", "--yes")),
        ("reshard", ("reshard", "sync_order", "7")),
        ("pause_migration", ("reshard", "sync_order", "--pause")),
        ("abort_migration", ("reshard", "sync_order", "--abort")),
        ("repair", ("repair", "sync_order", "--yes")),
        ("load", ("load", "sync_order")),
    ],
)
def test_each_command_that_changes_says_why_in_the_audit_log(run, server, action, command):
    broken_shard(server)
    run(*command, "--reason", "its customer asked", stdin=b"")
    begins, ends = changes(run)
    for entry in (begins, ends):
        assert (entry["action"], entry["queue"]) == (action, "sync_order")
        assert (entry["user"], entry["reason"]) == (getpass.getuser(), "its customer asked")
    assert (begins["state"], ends["state"] in ("done", "failed")) == ("begins", True)


def test_a_reshard_says_the_number_of_shards(run, queue):
    run("reshard", "sync_order", "7")
    assert [(one["state"], one["filter"]) for one in changes(run)] == [
        ("begins", "{'shards': 7}"),
        ("done", "{'shards': 7}"),
    ]


def test_a_group_that_is_cancelled_is_in_the_audit_log(run, server):
    with track("import", proj.app) as tracker:
        proj.sync_order.perform_async([{"id": 1, "payload": 1}], tracker=tracker)
    run("cancel", tracker.id, "--yes", "--reason", "a wrong file")
    begins, ends = changes(run)
    assert (begins["action"], begins["queue"], begins["ids"]) == ("cancel", "tracker import", [tracker.id])
    assert (ends["state"], ends["jobs"], ends["reason"]) == ("done", 1, "a wrong file")


def test_a_reason_that_is_too_long_changes_nothing(run, queue):
    refused = run("pause", "sync_order", "--reason", "x" * 201)
    assert (refused.exit_code, "expected at most 200 characters" in refused.output) == (2, True)
    assert "none" in run("audit").output


def test_a_move_that_is_paused_or_resumed_is_counted_in_the_audit_log(run, queue):
    """The count was stored as a JSON boolean."""
    proj.sync_order.perform_async([{"id": 1, "payload": 1}])
    Migrations(context_of(proj.app).store.client, queue.name).begin(7)
    for verb in ("--pause", "--resume"):
        run("reshard", "sync_order", verb)
    counts = [one["jobs"] for one in changes(run) if one["state"] == "done"]
    assert counts == [1, 1]
    assert [type(count) for count in counts] == [int, int]
