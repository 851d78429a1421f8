"""A script reads and changes little more than its limits allow, for stored data of any size."""

from __future__ import annotations

import itertools

import pytest

from celery_lowkiq.rules.models import Call, Failure
from celery_lowkiq.store.actions import STEP_BYTES as ACTION_BYTES
from celery_lowkiq.store.claims import CLAIM_BYTES, MAX_GROUPS, record_call
from celery_lowkiq.store.dump_load import STEP_BYTES as DUMP_BYTES
from celery_lowkiq.store.dump_load import dump_entries
from celery_lowkiq.store.keys import failure_ranks_key, shard_keys
from celery_lowkiq.store.script import load
from tests.bound import Actions
from tests.store.helpers import ONE, SHARD, claim, end, ids_of, push, stats, take

LARGE = 64 * 1024
#: The largest payload that a setting allows.
MAX_PAYLOAD = 1024 * 1024
#: STEP_BYTES of payloads.lua.
LONG_STEP_BYTES = 256 * 1024


def push_large(store, count):
    """Jobs with payloads as large as calls may be, in the order of their ids."""
    for n in range(count):
        store.push(ONE, [Call(f"{n:04}", b"x" * LARGE, 1.0, perform_in=float(n))])


def commands_of_scripts(client, act):
    """What scripts sent while ``act`` ran."""
    with client.monitor() as monitor:
        act()
        client.echo("end")
        sent = itertools.takewhile(lambda one: not one["command"].startswith("ECHO"), monitor.listen())
        return [one["command"].split() for one in sent if one.get("client_type") == "lua"]


@pytest.mark.one_server
def test_a_claim_does_not_read_all_due_jobs_to_take_some(store, client):
    most = CLAIM_BYTES // LARGE
    push_large(store, 6 * most)
    lease, found = take(store), []
    commands = commands_of_scripts(client, lambda: found.append(claim(store, lease, limit=1000)))
    assert ids_of(found[0]) == [f"{n:04}" for n in range(most)]
    read = sum(len(words) - 2 for words in commands if words[:2] == ["HMGET", shard_keys(SHARD)["jobs"]])
    assert most <= read <= 2 * most


@pytest.mark.one_server
def test_a_claim_of_plain_jobs_does_not_count_what_waits(store, client):
    """A claim that finds none compares the number of jobs with their times."""
    lease, found = take(store), []
    push(store, "1", ("a", 1), perform_in=1.0)
    of_one = commands_of_scripts(client, lambda: found.append(claim(store, lease)))
    end(store, lease, found[0])
    of_none = commands_of_scripts(client, lambda: found.append(claim(store, lease)))
    assert [ids_of(each) for each in found] == [["1"], []]
    counts = ["HLEN", shard_keys(SHARD)["jobs"]]
    assert (counts in of_one, counts in of_none) == (False, True)


def test_large_jobs_are_claimed_one_after_the_other_beside_small_and_failed_ones(store):
    """In whatever part of the due jobs they are."""
    push_large(store, 40)
    for n in range(40, 140):
        push(store, f"{n:04}", ("small", 1), ("other", 2), perform_in=float(n))
    lease, found = take(store), []
    while jobs := ids_of(claim(store, lease, limit=100)):
        found += jobs
    assert found == [f"{n:04}" for n in range(140)]


@pytest.mark.parametrize("name", ["bury", "requeue", "delete_dead"])
def test_the_bytes_of_all_jobs_of_a_step_are_limited(store, client, name):
    push_large(store, 4)
    ids = [f"{n:04}" for n in range(4)]
    actions = Actions(store.client)
    if name != "bury":
        actions.bury(ONE, ids, b"reason")
    bounds = {"merge": "min", "policy": "", "limit": 500, "max_bytes": LARGE + 1}
    more = (
        {"only_failed": 0, "reason": b""}
        if name == "bury"
        else {"maximum": "+inf", "channel": "c", "index": 0}
    )
    more |= {"force": 0} if name == "requeue" else {}
    dealt, moved, *_ = store.client.call(load(name).call(shard_keys(SHARD), ids, **bounds, **more))
    assert (dealt, moved) == (2, 2)
    {"bury": lambda: actions.bury(ONE, ids, b""), "requeue": lambda: actions.requeue(ONE, ids)}.get(
        name, lambda: actions.delete_dead(ONE, ids)
    )()
    counts = stats(store)
    assert (counts.length, counts.morgue_length) == {
        "bury": (0, 4),
        "requeue": (4, 0),
        "delete_dead": (0, 0),
    }[name]


def push_long(store, sizes):
    """Push a job with payloads of these sizes; return them by ascending score."""
    payloads = [(b"%04d" % n).ljust(size, b"x") for n, size in enumerate(sizes)]
    for n, payload in enumerate(payloads):
        store.push(ONE, [Call("long", payload, float(n))])
    return payloads


def payloads_read(client, act):
    """How many payloads of a long job each script asked for while ``act`` ran."""
    asked = []
    with client.monitor() as monitor:
        act()
        client.echo("end")
        for one in itertools.takewhile(lambda one: not one["command"].startswith("ECHO"), monitor.listen()):
            words = one["command"].split()
            if one["client_type"] != "lua":
                asked.append(0)
            elif words[:2] == ["ZRANGEBYLEX", shard_keys(SHARD)["spill_order"]]:
                asked[-1] += int(words[-1])
    return asked


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("name", "max_bytes"), [("claim", CLAIM_BYTES), ("dump", DUMP_BYTES), ("delete", ACTION_BYTES)]
)
def test_a_script_reads_no_more_bytes_of_a_long_job_than_its_limit_and_one_step(
    store, client, name, max_bytes
):
    payloads, found = push_long(store, [LARGE] * 60), []
    if name == "claim":
        lease = take(store)
        asked = payloads_read(client, lambda: found.extend(claim(store, lease).jobs[0].payloads))
        payloads = payloads[: CLAIM_BYTES // LARGE]
    elif name == "dump":
        asked = payloads_read(client, lambda: found.extend(dumped(store)))
    else:
        asked = payloads_read(client, lambda: Actions(store.client).delete(ONE, ["long"]))
        assert stats(store).length == 0
    assert [payload.data for payload in found] == ([] if name == "delete" else payloads)
    assert sum(asked) >= len(payloads)
    assert max(asked) * LARGE <= max_bytes + LONG_STEP_BYTES


@pytest.mark.one_server
def test_the_payload_of_a_job_is_not_read_to_delete_it(store, client):
    """50 ids of a step with 2 MB each stopped Redis for 60 ms."""
    push_large(store, 4)
    client.config_resetstat()
    assert Actions(store.client).delete(ONE, [f"{n:04}" for n in range(4)]) == 4
    # Of the shard.
    assert client.info("commandstats")["cmdstat_hget"]["calls"] < 4
    assert stats(store).length == 0


def dumped(store):
    entries = list(dump_entries(store, ONE))
    assert all(entry.payloads for entry in entries)
    return [payload for entry in entries for payload in entry.payloads]


@pytest.mark.parametrize(
    "sizes",
    [[MAX_PAYLOAD] * 3, [LARGE] * 4, [LARGE, *[10] * 40] * 2, [10, 10, MAX_PAYLOAD, LARGE] * 3, [4096] * 80],
    ids=["largest", "a step", "large before small", "mixed", "alike"],
)
def test_a_long_job_is_read_whole_whatever_the_sizes_of_its_payloads(store, client, actions, sizes):
    payloads = push_long(store, sizes)
    assert [payload.data for payload in dumped(store)] == payloads
    actions.bury(ONE, ["long"], b"")
    assert [payload.data for payload in dumped(store)] == payloads
    actions.requeue(ONE, ["long"])
    lease, found = take(store), []
    while (claimed := claim(store, lease)).jobs:
        found += [payload.data for payload in claimed.jobs[0].payloads]
        end(store, lease, claimed)
    assert found == payloads
    push_long(store, sizes)
    assert actions.delete(ONE, ["long"]) == 1
    assert (stats(store).length, client.zcard(shard_keys(SHARD)["spill_order"])) == (0, 0)


@pytest.mark.one_server
def test_foreign_groups_of_failures_are_removed_some_at_a_time(store, client):
    ranks = failure_ranks_key(ONE.name)
    client.zadd(ranks, {f"foreign-{n}": n for n in range(3 * MAX_GROUPS)})
    sizes = [store.client.call(record_call(ONE.name, [Failure("a", b"about")])) for _ in range(3)]
    assert sizes == [2 * MAX_GROUPS + 1, MAX_GROUPS + 1, MAX_GROUPS]
