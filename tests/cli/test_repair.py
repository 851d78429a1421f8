"""O6: ``repair`` says what is damaged and repairs it with --yes; ``doctor`` finds it and says so."""

from __future__ import annotations

import json
import re

import redis

from celery_lowkiq.rules.models import ShardRef, shard_of
from celery_lowkiq.store.keys import shard_keys
from tests.cli import proj


def broken_shard(server, job_id="42"):
    """A waiting job whose due time is lost."""
    proj.app.tasks["sync_order"].delay(job_id, {"status": "paid"})
    shard = ShardRef("sync_order", shard_of(job_id, proj.app.tasks["sync_order"].ordered_queue.spec.shards))
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.delete(shard_keys(shard)["due"])
    return shard


def test_nothing_is_changed_without_yes(server, run):
    shard = broken_shard(server)
    for _ in range(2):
        found = run("repair", "sync_order")
        assert found.exit_code == 1
        assert f"damaged {shard}: 1 jobs wait, 0 + 0 + 0 + 0 have a due time" in found.stdout


def test_with_yes_it_is_repaired_and_what_was_done_is_said(server, run):
    shard = broken_shard(server)
    found = run("repair", "sync_order", "--yes")
    assert found.exit_code == 0
    assert f"repaired {shard}: 1 waiting jobs are due now" in found.stdout
    assert run("repair", "sync_order").stdout == "queue sync_order is sound\n"
    assert run("stats", "sync_order").exit_code == 0


def test_the_doctor_finds_it_and_names_the_command(server, run):
    shard = broken_shard(server)
    shown = run("doctor")
    assert shown.exit_code == 1
    assert f"It is damaged: {shard}: 1 jobs wait, 0 + 0 + 0 + 0 have a due time." in shown.stdout
    assert "celery -A proj lowkiq repair sync_order" in shown.stdout


def test_a_key_of_another_type_does_not_end_the_doctor(server, run):
    shard = broken_shard(server)
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.set(shard_keys(shard)["due"], "planted")
    assert f"{shard}: the key due has the wrong type" in run("doctor").stdout
    assert run("repair", "sync_order", "--yes").exit_code == 0


def with_wrong_key(server):
    """A shard that has a key of another type, beside a queue with a job."""
    proj.app.tasks["send_mail"].delay("1", "hello")
    shard = broken_shard(server)
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        client.set(shard_keys(shard)["due"], "planted")
    return shard


def test_the_counts_of_other_queues_are_shown_beside_a_damaged_one(server, run):
    """O6: one key of another type took the counts of all queues."""
    shard = with_wrong_key(server)
    shown = run("stats")
    assert shown.exit_code == 1
    assert re.search(r"^send_mail +1 ", shown.stdout, re.MULTILINE)
    assert re.search(r"^sync_order +- .* damaged$", shown.stdout, re.MULTILINE)
    assert re.search(r"^total +1 ", shown.stdout, re.MULTILINE)
    assert shown.stderr.startswith(f"shard {shard} is damaged: ")
    overview = json.loads(run("stats", "--json").stdout)
    lengths = {queue["name"]: queue["stats"]["length"] for queue in overview["queues"]}
    assert lengths["send_mail"] == 1
    assert "lowkiq repair sync_order" in overview["damaged"]["sync_order"]
    assert run("stats", "send_mail").exit_code == 0


def test_commands_on_a_damaged_queue_name_the_shard_and_its_repair(server, run):
    """O6: a listing said no more than that Redis refused a command."""
    shard = with_wrong_key(server)
    for words in (["stats"], ["stats", "--shards"], ["jobs"], ["jobs", "--by", "perform_in"], ["dump"]):
        shown = run(words[0], "sync_order", *words[1:])
        assert shown.exit_code == 1
        assert f"shard {shard} is damaged: " in shown.stderr
        assert "lowkiq repair sync_order" in shown.stderr
