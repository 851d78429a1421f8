"""R14: Redis does not roll back, so a key of another type is an error before a script's first write.

Scripts and keys come from the scripts' own headers: a new one without its ``arguments`` fails here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.rules.tracking import NewCall, began
from celery_lowkiq.store import keys
from celery_lowkiq.store.call_records import digest
from celery_lowkiq.store.keys import (
    KEY_TYPES,
    SHARD_KEYS,
    TRACKER_KEYS,
    TrackerKeys,
    report_key,
    reports_key,
    shard_keys,
)
from celery_lowkiq.store.script import PROBES, load, lua_files
from celery_lowkiq.store.trackers import TrackerStore
from tests.bound import Pausing
from tests.store.helpers import ONE, SHARD, claim, end, everything, push, take

SCRIPTS = sorted(name.removesuffix(".lua") for name in lua_files() if not name.startswith("lib/"))
ANNOUNCED = {"channel": "c", "index": 0}
EDITED = {"payload": "a", "replaced": 1, "other": "b", "signatures": "s" * 48, "signed_score": "1"}
POLICY = (
    "keep=9 debounce=5 drop_stale=9 due_on_push=1 max_length=100 when_full=drop_oldest rate=5 burst=1 "
    "priority=3 retry_priority=4 hold=9"
)
TRACKER = "0" * 32


@dataclass(frozen=True)
class State:
    """Of a shard with jobs everywhere: its lease, the last claim, and the epoch of an owner that died."""

    epoch: int = 0
    counter: int = 0
    claim: int = 0
    died: int = 0
    server: str = ""
    #: Data of a transfer from the shard.
    transfer: bytes = b""


def arguments(state):
    """By script and use: named arguments and the repeated part, with which it changes something."""
    owner = {"owner": "me", "epoch": state.epoch}
    seen = {"seen_owner": "me", "seen_epoch": state.epoch, "seen_counter": state.counter}
    seen |= {"seen_server": state.server, "known_epoch": 0}
    bounds = {"limit": 10, "max_bytes": 10**6}
    words = {"merge": "min", "policy": POLICY}
    return {
        "acquire": (
            {
                "owner": "next",
                **seen,
                "shards": 1,
                "merge": "min",
                "policy": POLICY,
                "max_crashes": 3,
                "poison_error": "poison",
            },
            (),
        ),
        "apply_queue_pause": ({"pause": 9, "since": 1, **ANNOUNCED}, ()),
        "begin_migration": ({"gen": 0, "shards": 1, "wanted": 2}, ()),
        "restart_migration": ({"gen": 1, "phase": "prepare"}, ()),
        "bury": ({"merge": "min", "policy": POLICY, "only_failed": 1, "reason": "", **bounds}, ("failed",)),
        "claim": (
            {
                **owner,
                "merge": "min",
                "policy": POLICY,
                "request": 10**9,
                "last": 0,
                "open": "any",
                **bounds,
                "max_payloads": 9,
                "suspects": 1,
                "max_wait": 60,
            },
            (),
        ),
        "claim of plain jobs": (
            {**owner, "merge": "min", "policy": "", "request": 10**9, "last": 0, "open": "any"}
            | {**bounds, "max_payloads": 9, "suspects": 1, "max_wait": 60},
            (),
        ),
        "delete": ({"policy": POLICY, "only_failed": 0, "upto": "", "cursor": "", **bounds}, ("failed",)),
        "delete_call_records": (owner, ("a", "z")),
        "delete_dead": ({"maximum": "+inf", **words, **ANNOUNCED, **bounds}, ("dead",)),
        "delete_wrong_type": ({"probe": "ZCARD"}, ()),
        "dump": ({"cursor": "", **bounds}, ("long", "failed")),
        "edit": (
            {"merge": "min", "policy": POLICY, "id": "failed", **EDITED}
            | {"digest": digest(b"a"), "other_digest": digest(b"b")},
            (),
        ),
        "edit_dead": ({**words, **ANNOUNCED, "id": "dead", **EDITED}, ()),
        "export": (
            {"gen": 1, "shard": 1, "number": 0, "counts": 1, "silent": "", **bounds},
            ("long", "failed", "dead", "recorded", "held"),
        ),
        "fence": ({"gen": 1, "route": "1>2"}, ()),
        "find_jobs": ({}, ()),
        "forget_transfer": ({"gen": 1, "shard": 1, "number": 1}, ()),
        "heartbeat": ({"member": "me 2", "turn": 1}, ()),
        "import_jobs": (
            {"merge": "min", "policy": POLICY, **ANNOUNCED, "gen": 1}
            | {"shard": 1, "number": 1, "data": state.transfer},
            (),
        ),
        "key_counts": ({}, [PROBES[SHARD_KEYS[name]] for name in load("key_counts").keys]),
        "largest_numbers": ({"part": "jobs", "cursor": 0, "limit": 10}, ()),
        "load": (
            {"shards": 1, "merge": "min", "policy": POLICY, "sender": "s", **ANNOUNCED, "last_score": 0},
            (
                *("1", "calls", "new", 0, -1, "", 0, 1, digest(b"x"), "call", ""),
                *("2", "waiting", "long", 5, 3, "error", 2, 1, "1", "x", "R"),
                *("3", "dead", "dead", 9e9, -1, "error", 0, 1, "1", "x", ""),
            ),
        ),
        "next_due": ({"open": "any"}, ()),
        "open": ({"shards": "1>2", "gen": 1, "pause": 9, "since": 1, "score": 9, "last_call": 9}, ()),
        "page": (
            {"minimum": "-inf", "maximum": "+inf", "after_score": "", "after_id": ""}
            | {"past": 1, "limit": 10, "reverse": 0},
            (),
        ),
        "hold_ids": ({"wanted": 1, **ANNOUNCED}, ("dead", "new")),
        "pause_ids": ({"wanted": 1, **ANNOUNCED}, ("long", "new")),
        "pause_ids resumes": ({"wanted": 0, **ANNOUNCED}, ("held",)),
        "pause_queue": ({"wanted": 1}, ()),
        "pause_shard": ({"wanted": 1, **ANNOUNCED}, ()),
        "pause_shard resumes": ({"wanted": 0, **ANNOUNCED}, ()),
        "peek": ({**bounds, "cut": 1000}, ("long", "failed")),
        "push": (
            {
                "shards": 1,
                "merge": "min",
                "policy": POLICY + " prioritized=1 arriving=1",
                "sender": "s",
                "n": 1,
                **ANNOUNCED,
                "signatures": "s" * 48,
                "records": 1,
            },
            ("long", "x", "", "2 ", "new", "x", "1", "0 +5", 1, digest(b"x"), "call"),
        ),
        "push of a new id": (
            {"shards": 1, "merge": "min", "policy": "", "sender": "s", "n": 1, **ANNOUNCED}
            | {"signatures": "", "records": 1},
            ("new", "x", "", "+5", 0, digest(b"x"), "call"),
        ),
        **dict.fromkeys(("read_leases", "read_progress", "read_server"), ({}, ())),
        "scan": ({"command": "ZSCAN", "cursor": 0, "limit": 10, "server": ""}, ()),
        "read_moves": ({"limit": 10}, ()),
        "abort_migration": ({}, ()),
        "pause_migration": ({"wanted": 1}, ()),
        "stay": ({"gen": 1, **ANNOUNCED}, ("long", "held")),
        "hold": ({"gen": 1}, ()),
        "register": (
            {"format": 4, "shards": 2, "expected": 1, "gen": 0, "migration": "", "pause": 9, "since": 1},
            (),
        ),
        "relay": ({"gen": 1, **ANNOUNCED}, ("long", "held")),
        "release": ({**owner, **ANNOUNCED, "server": state.server, "unsettled": 0}, ()),
        "renew": ({**owner, "stopping": 0, "turn": 1}, ()),
        "renew_many": ({"owner": "me", "turn": 1}, (state.epoch,)),
        "finish_repair": ({"extra": 7, "known": "", "accept": 1}, ()),
        "repair_meta": (
            {"known": "1", "shards": 1, "pause": 9, "since": 1}
            | {"score": 9e15, "back": 9e9, "front": -9e9, "call": 9},
            (),
        ),
        "repair_morgue": ({"part": "dead_jobs", "cursor": 0, "limit": 1000}, ()),
        "repair_payload_sets": ({"merge": "min", "part": "spill_order", "cursor": 0, "limit": 1000}, ()),
        "repair_processing": ({"owner": "me", "epoch": state.epoch}, ()),
        "repair_waiting": (
            {"default_priority": 0, **ANNOUNCED, "part": "jobs", "cursor": 0, "limit": 1000},
            (),
        ),
        "replace_call_records": (owner, (RECORDED + b"of a call", RECORDED + b"started")),
        "requeue": (
            {"merge": "min", "policy": POLICY, **ANNOUNCED, "maximum": "+inf", "force": 0, **bounds},
            ("dead",),
        ),
        "retract_crashes": ({"epoch": state.died}, ()),
        "run_now": ({**ANNOUNCED, "limit": 10}, ()),
        "run_now of ids": ({**ANNOUNCED, "limit": 0}, ("failed",)),
        "seal": ({"shards": "1>2", "gen": 1, "sealed": "2"}, ()),
        "set_phase": ({"gen": 1, "phase": "prepare", "next": "flip", "shards": "1>2"}, ()),
        "set_shard_count": ({"shards": 2, "pause": 0, "since": ""}, ()),
        "settle": (
            {**owner, "merge": "min", "policy": POLICY, "claim": 0, "done": 0},
            ("runs", state.claim, "die", 0, 0, "error", "last line", 1, 0, "bad"),
        ),
        "settle of done jobs": (
            {**owner, "merge": "min", "policy": "", "claim": state.claim, "done": 1},
            ("plain",),
        ),
        "record_failures": ({"most": 1}, ("a", 1, "text", "b", 2, "text")),
        **dict.fromkeys(("read_clock", "read_counters", "stats"), ({}, ())),
        "take_tokens": (
            {"holder": "me 1", "number": 1, "rate": "0.5", "capacity": 1, "wanted": 1, "surplus": 0},
            (),
        ),
        "track_add": ({"channel": "c", "latest": "+5"}, ("new", "0 0 ")),
        "track_close": ({"channel": "c", "cancel": 1, "limit": 10}, ()),
        "track_open": ({"name": "new", "ttl": 60}, ()),
        "track_page": ({"after": 0, "limit": 10}, (0, 1)),
        "track_progress": ({"current": 1, "total": 2, "text": "said"}, ("runs", 5, 1)),
        "track_update": ({"channel": "c"}, ("waits", 0, 5, 1, "enqueued", "error", "boom")),
        "why": ({"id": "runs"}, ()),
        "write_report": ({"owner": "me", "text": "{}", "uptime": "1.5", "ttl": 60}, ()),
        "write_samples": ({}, (1, 1, 60, "10.5 1 0", "0.5")),
    }


#: The call of the id that has a record.
RECORDED = b"recorded\0" + digest(b"x") + b"%012x" % 1
NAMES = list(arguments(State()))
#: Those that change nothing.
READERS = {
    *("key_counts", "dump", "find_jobs", "largest_numbers", "next_due", "page", "peek"),
    "read_leases",
    *(
        "read_moves",
        "read_progress",
        "stats",
        "read_clock",
        "read_counters",
        "track_page",
        "why",
        "read_server",
        "scan",
    ),
}
#: The keys that scripts for several kinds of keys are bound to here.
BOUND = {"index": "due", "records": "jobs"}
PLANTS = {
    "string": lambda client, key: client.set(key, "planted"),
    "list": lambda client, key: client.rpush(key, "planted"),
    "hash": lambda client, key: client.hset(key, "planted", "1"),
    "zset": lambda client, key: client.zadd(key, {"planted": 1}),
}


def an_idle_shard(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    end(store, lease, claim(store, lease))
    return State(lease.epoch, server=lease.server)


def a_shard_without_a_number(store):
    state = an_idle_shard(store)
    store.client.servers.redis.hdel(shard_keys(SHARD)["meta"], "shards")
    return state


def a_paused_shard(store):
    Pausing(store.client).switch_shard(ONE, 0, paused=True)
    state = an_idle_shard(store)
    store.push(ONE, [Call("ranked", b"x", priority=5)])
    return state


def a_shard_with_jobs_everywhere(store):
    """A suspect, a failed one and a long one waiting, one dead, one in processing."""
    push(store, "suspect", ("a", 1), perform_in=1.0)
    for owner in ("first", "second"):
        claim(store, died := take(store, owner=owner))
    lease = take(store)
    for job_id, disposition in (("dead", Disposition.BURY), ("failed", Disposition.RETRY)):
        push(store, job_id, ("a", 1), perform_in=1.0)
        end(store, lease, claim(store, lease, 1), disposition, delay=1000.0)
    push(store, "runs", ("a", 1), ("b", 2), perform_in=2.0)
    running = claim(store, lease, 1)
    store.push(ONE, [Call("long", b"%d" % n * 50, float(n)) for n in range(100)])
    store.push(ONE, [Call("recorded", b"x", record=b"of a call"), Call("ranked", b"x", priority=5)])
    Pausing(store.client).switch_ids(ONE, ["held", "runs"], paused=True)
    push(store, "held", ("a", 1))
    (seen,) = store.observe([SHARD])
    return State(lease.epoch, seen.counter, running.number, died.epoch, seen.server)


def a_plain_job(store):
    push(store, "plain", ("a", 1), perform_in=1.0)
    return State(take(store).epoch)


def a_plain_job_in_processing(store):
    push(store, "plain", ("a", 1), perform_in=1.0)
    lease = take(store)
    return State(lease.epoch, claim=claim(store, lease).number)


def a_shard_that_has_lost(key, planted=False):
    def prepare(store):
        state = a_shard_with_jobs_everywhere(store)
        store.client.commands([("DEL", shard_keys(SHARD)[key])])
        if planted:
            store.client.commands([("SET", shard_keys(SHARD)[key], "planted")])
        return state

    return prepare


def after(prepare, *names):
    def prepared(store):
        state = prepare(store)
        for name in names:
            store.client.call(call_of(name, state))
        return state

    return prepared


a_shard_in_migration = after(a_shard_with_jobs_everywhere, "fence", "open")
a_shard_whose_jobs_stay = after(a_shard_in_migration, "stay")
a_moving_queue = after(an_idle_shard, "begin_migration")


def a_shard_with_a_transfer(store):
    state = a_shard_in_migration(store)
    _, transfer, *_ = store.client.call(call_of("export", state))
    return replace(state, transfer=transfer)


def a_tracker(store):
    """With a call that waits, and one that runs."""
    tracker_store = TrackerStore(store.client)
    store.client.call(load("track_open").call(TrackerKeys(TRACKER), name="old", ttl=60))
    tracker_store.add(TRACKER, [NewCall("waits", "orders", "1", b""), NewCall("runs", "orders", "2", b"")])
    tracker_store.update([began(TRACKER, "runs", 5, 1)._replace(text="said")])
    return State()


def no_tracker(store):
    return State()


def script_of(name):
    return load(name.partition(" ")[0])


def call_of(name, state):
    named, repeated = arguments(state)[name]
    script = script_of(name)
    if script.repeated_keys:
        return script.call_many([Keys()[key] for key in script.repeated_keys], repeated, **named)
    return script.call(Keys(), repeated, **named)


#: For those that change nothing of a shard with jobs.
STATES = {
    "delete_wrong_type": a_shard_that_has_lost("due", planted=True),
    "release": an_idle_shard,
    "repair_payload_sets": a_shard_that_has_lost("spill"),
    "repair_morgue": a_shard_that_has_lost("dead"),
    "repair_processing": a_shard_that_has_lost("claimed"),
    "repair_waiting": a_shard_that_has_lost("due"),
    "set_shard_count": a_shard_without_a_number,
    "pause_shard resumes": a_paused_shard,
    **dict.fromkeys(("export", "relay", "seal", "stay"), a_shard_in_migration),
    **dict.fromkeys(("import_jobs", "forget_transfer"), a_shard_with_a_transfer),
    "open": after(a_shard_with_jobs_everywhere, "fence"),
    "hold": a_shard_whose_jobs_stay,
    **dict.fromkeys(("abort_migration", "pause_migration", "restart_migration", "set_phase"), a_moving_queue),
    "push of a new id": an_idle_shard,
    "claim of plain jobs": a_plain_job,
    "settle of done jobs": a_plain_job_in_processing,
}
OF_POLICIES = "debounce early_due done_scores buckets"
#: Keys that only later parts of a script use, which these calls do not reach.
NOT_REACHED = {
    "push of a new id": "due_prioritized due_paused spill spill_order failed errors processing tries "
    f"arrived inflight {OF_POLICIES}",
    "claim of plain jobs": f"calls arrived inflight {OF_POLICIES}",
    "settle of done jobs": "due_prioritized due_paused spill spill_order failed errors arrived calls "
    f"dead_ids dead_jobs dead_spill dead_spill_order dead_errors {OF_POLICIES}",
}
#: Keys of the parts of ``largest_numbers`` that are not read here.
OF_OTHER_PARTS = "claimed processing spill_order calls done_scores dead_jobs dead_spill_order"
#: Keys that are looked at only when something is amiss, and in a migration.
UNTOUCHED = {
    *(("read_counters", key) for key in ("due", "due_prioritized", "claimed")),
    *(("claim", "calls"), ("pause_shard resumes", "due_paused"), ("heartbeat", "queue")),
    *(("largest_numbers", key) for key in OF_OTHER_PARTS.split()),
    *((n, "meta") for n in ("delete_call_records", "release", "renew", "replace_call_records")),
    *((n, key) for n in NAMES for key in ("arrived", "inflight") if n not in (*STATES, "fence")),
    *((name, key) for name, keys in NOT_REACHED.items() for key in keys.split()),
}
#: Those that are there for keys of another type, or leave a shard that has one to another script.
TOLERANT = {"delete_wrong_type", "find_jobs", "key_counts", "read_leases", "renew_many", "read_server"}


def prepared(store, name):
    if name.startswith("track_"):
        return (no_tracker if name == "track_open" else a_tracker)(store)
    return STATES.get(name, a_shard_with_jobs_everywhere)(store)


class Keys:
    def __getitem__(self, name):
        of_queues = {"report": report_key("me"), "reports": reports_key()}
        for other in ("queue", "nodes", "tokens", "history", "failures", "failure_ranks"):
            of_queues[other] = getattr(keys, f"{other}_key")("orders")
        if name in TRACKER_KEYS:
            return TrackerKeys(TRACKER)[name]
        return of_queues.get(name) or shard_keys(SHARD)[BOUND.get(name, name)]


def test_every_script_is_tried():
    assert sorted({script_of(name).name for name in NAMES}) == SCRIPTS


@pytest.mark.parametrize("name", NAMES)
def test_with_keys_of_the_right_types_it_works(store, client, name):
    state = prepared(store, name)
    before = everything(client)
    (reply,) = store.client.calls([call_of(name, state)])
    assert not isinstance(reply, StoreError), reply
    assert (everything(client) == before) == (name in READERS)


def planted_keys(name):
    """Each key that a script reads, with each type that is not its own."""
    if name in TOLERANT:
        return []
    script = script_of(name)
    keys = [key for key in (*script.keys, *script.repeated_keys) if (name, key) not in UNTOUCHED]
    return [(key, type_) for key in keys for type_ in PLANTS if type_ != KEY_TYPES[key]]


def kept(client, key):
    """A way back to the key as it is now."""
    value, ttl = client.dump(key), client.pttl(key)

    def restore():
        client.delete(key)
        if value is not None:
            client.restore(key, max(0, ttl), value)

    return restore


def fault(client, store, name, state):
    """What is wrong with the script's answer to a planted key; empty when it is right."""
    before = everything(client)
    (reply,) = store.client.calls([call_of(name, state)])
    if not isinstance(reply, StoreError) or "WRONGTYPE" not in str(reply):
        return f"answers {reply!r}"
    return "" if everything(client) == before else "wrote before the error"


@pytest.mark.parametrize("name", [name for name in NAMES if planted_keys(name)])
def test_a_key_of_another_type_is_an_error_before_the_first_write(store, client, name):
    """One state serves all keys of a script, since an error leaves it as it was."""
    state = prepared(store, name)
    faults = []
    for key, type_ in planted_keys(name):
        restore = kept(client, Keys()[key])
        client.delete(Keys()[key])
        PLANTS[type_](client, Keys()[key])
        if wrong := fault(client, store, name, state):
            faults.append(f"{name}.lua with a {type_} as {key}: {wrong}")
            client.flushall()
            state = prepared(store, name)
        else:
            restore()
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", NOT_REACHED)
def test_a_script_that_ends_early_leaves_other_keys_alone(store, client, name):
    for key in NOT_REACHED[name].split():
        client.flushall()
        state = prepared(store, name)
        client.set(Keys()[key], "planted")
        assert fault(client, store, name, state).startswith("answers "), key
        assert client.get(Keys()[key]) == b"planted"


def test_a_script_that_takes_the_key_as_it_is_would_be_seen(store, client):
    """``read_counters`` does not read this key."""
    state = prepared(store, "read_counters")
    client.delete(Keys()["jobs"])
    client.set(Keys()["jobs"], "planted")
    assert fault(client, store, "read_counters", state).startswith("answers [")
