"""Roles in Redis: what each user of ``lowkiq acl`` does, and what it must not."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import celery_lowkiq.store
from celery_lowkiq.integration.actions import ACTIONS
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import AccessDenied, InvalidCall
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.rules.policies import Policies, WhenFull
from celery_lowkiq.rules.tracking import NewCall
from celery_lowkiq.rules.views import SPANS, Counters, NodeReport, NodeUpdate, UpdateReply
from celery_lowkiq.store import registry
from celery_lowkiq.store.acl import ROLES, WRITES, commands_of, keys_of, rules
from celery_lowkiq.store.keys import (
    AUDIT_KEY,
    KEY_TYPES,
    TRACKERS_KEY,
    TrackerKeys,
    channel,
    queue_key,
    shard_keys,
)
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load, lua_files
from celery_lowkiq.store.trackers import TrackerStore
from celery_lowkiq.testing import Lowkiq
from tests.bound import Actions, Pausing
from tests.roles import PASSWORD, client_of, denied, make_user, version_of
from tests.waiting import eventually
from tests.worker import proj

pytestmark = pytest.mark.one_server

STORE = Path(celery_lowkiq.store.__file__).parent
QUEUE = QueueSpec("orders", 2)
SHARD = shard_keys(QUEUE.shard_refs()[0])
#: Of tests, of other parts of Redis, and texts that are no commands.
OTHERS = {
    "EVAL",
    "FLUSHALL",
    "INCRBY",
    "MOVED",
    "ASK",
    "ASKING",
    "MULTI",
    "EXEC",
    "TRYAGAIN",
    "WRONGTYPE",
    "CONFIG",
    "SCRIPT",
    "MEMORY",
}


@pytest.fixture
def path(client: redis.Redis) -> str:
    found: str = client.connection_pool.connection_kwargs["path"]
    client.execute_command("ACL", "LOG", "RESET")
    return found


@pytest.fixture
def user(path: str) -> Iterator[object]:
    """A client of a role, for a queue or for all."""
    opened = []

    def open_client(role, *queues):
        entered = client_of(path, role, *queues)
        opened.append(entered)
        return entered.__enter__()

    yield open_client
    for entered in reversed(opened):
        entered.__exit__(None, None, None)


@pytest.fixture
def filled(client: redis.Redis) -> RedisStore:
    store = RedisStore(client)
    store.push(QUEUE, [Call(str(number), b"x", None, 4e9) for number in range(10)])
    Actions(store.client).bury(QUEUE, ["1", "2", "3"], b"reason")
    return store


# -- the table


def test_each_script_is_in_the_table():
    names = {name.removesuffix(".lua") for name in lua_files() if "/" not in name}
    assert frozenset().union(*(role.scripts for role in ROLES.values())) == names


def test_each_command_is_in_the_table():
    """Also those that Python sends, and those in libraries."""
    lua = "".join(re.sub("--.*", "", path.read_text()) for path in STORE.rglob("*.lua"))
    python = "".join(path.read_text() for path in STORE.rglob("*.py") if path.name != "clocked.py")
    sent = {
        *re.findall(r"redis\.p?call\('([A-Z]+)'", lua),
        *re.findall(r'[\[( ]\("([A-Z]{3,})"[,)]', python),
    }
    assert {"HMGET", "ZREVRANGEBYSCORE", "XADD"} < sent
    assert sent - OTHERS <= frozenset().union(*map(commands_of, ROLES))


def test_each_key_is_in_the_table():
    aliases = {"index", "records"}
    assert frozenset().union(*map(keys_of, ROLES)) == (KEY_TYPES.keys() - aliases) | {
        "trackers",
        "ticket",
        "audit",
    }


def test_a_reader_has_no_command_that_writes(client):
    writes = {name.decode().upper() for name in client.execute_command("ACL", "CAT", "write")}
    assert {"HSET", "ZADD", "DEL", "XADD"} <= writes
    assert not commands_of("reader") & writes
    assert not commands_of("reader") & WRITES
    assert "PUBLISH" not in commands_of("reader")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("version", [(6, 2), (7, 0), (7, 2), (8, 0)])
def test_rules_have_no_password_and_give_no_right_to_all(role, version):
    words = rules(role, (), version)
    assert not [word for word in words if word[0] in "><#"]
    assert "nopass" not in words
    assert not {"~*", "&*", "+@all", "allkeys", "allchannels", "allcommands"} & {*words}
    starts = ("~lowkiq:", "&lowkiq:", "%R~lowkiq:", "%W~lowkiq:", "+", "-@all", "(~lowkiq:1:")
    assert all(word.startswith(starts) or word.isalpha() for word in words)


def test_a_name_of_a_queue_is_no_pattern(user, client):
    name = r"a*[b]?\c^-"
    like = QueueSpec("axxb?cc", 1)
    own = QueueSpec(name, 1)
    store = RedisStore(user("caller", name))
    store.push(own, [Call("1", b"x")])
    with pytest.raises(AccessDenied):
        store.push(like, [Call("1", b"x")])
    assert client.keys("*axxb*") == []


def test_a_role_that_does_not_exist():
    with pytest.raises(InvalidCall, match="expected one of caller"):
        rules("admin")


# -- what each does


def test_a_caller_calls(client, user):
    store = RedisStore(user("caller"))
    long = [Call("long", b"%d" % n + b"x" * 50, float(n), 1.0) for n in range(100)]
    store.push(QUEUE, [*long, *(Call(str(n), b"x") for n in range(20))])
    policies = Policies(max_length=3, when_full=WhenFull.DROP_OLDEST, debounce=5.0)
    store.push(QueueSpec("bounded", 1, policies=policies), [Call(str(n), b"x") for n in range(9)])
    trackers = TrackerStore(store.client)
    tracker = trackers.open("group", 3600)
    trackers.add(tracker, [NewCall("call", "orders", "1", b"x")])
    trackers.close(tracker)
    assert trackers.view(tracker) is not None
    trackers.cancel(tracker)
    assert denied(client) == []


def test_calls_of_an_app(client, path):
    app, own = _app(path, "caller", client), _app(path, None, client)
    task = app.tasks["record"]
    task.delay("1", "x")
    task.apply_async(("2", "y"), countdown=1)
    task.perform_async([{"id": str(n), "payload": n} for n in range(50)])
    with pytest.raises(AccessDenied):
        task.ordered_queue.delete(["1"])
    assert own.tasks["record"].ordered_queue.stats().length == 50
    _close(app, own)


def test_a_reader_reads(client, path):
    own, app = _app(path, None, client), _app(path, "reader", client)
    task = own.tasks["record"]
    task.perform_async([{"id": str(n), "payload": n} for n in range(20)])
    task.ordered_queue.bury(["1"])
    task.ordered_queue.pause_ids(["2"])
    Audit(own).write(Change("anna", "here", "bury", "record"), "done")
    client.execute_command("ACL", "LOG", "RESET")
    inspector = Inspector(app)
    queue = inspector.queue("record")
    for read in (inspector.overview, inspector.overview_json, inspector.shards_json, inspector.history):
        read()
    for read in (
        inspector.nodes,
        inspector.server,
        inspector.trackers,
        inspector.shard_states,
        inspector.migrating,
    ):
        read()
    for read in (queue.stats, queue.shards, queue.paused, queue.paused_ids, queue.held_ids, queue.processing):
        read()
    for read in (queue.morgue, queue.failures, queue.history, queue.damages, queue.migration):
        read()
    for span in SPANS:
        queue.history(span)
    for by in ("id", "perform_in", "retry_count"):
        queue.jobs(by)
    assert queue.job("1").dead
    assert "paused" in queue.why("2").text
    queue.tries("1")
    assert len(Audit(app).read().items) == 1
    assert denied(client) == []
    inspector.doctor()
    assert {word for entry in denied(client) for word in entry.split()[1:2]} <= {"config|get", "config"}
    _close(own, app)


def test_an_operator_operates(client, path):
    app = _app(path, "operator", client)
    task = app.tasks["record"]
    queue = task.ordered_queue
    task.perform_async([{"id": str(n), "payload": n} for n in range(50)])
    queue.bury(["1", "2", "3"])
    queue.pause_ids(["4"])
    queue.pause(shard=0)
    queue.pause()
    queue.resume()
    queue.resume(shard=0)
    queue.resume_all_ids()
    queue.run_now_all()
    queue.edit_payload("5", 5, "new")
    queue.delete_payload("5", "new")
    queue.edit_dead_payload("2", 2, "new")
    queue.requeue(["1"])
    queue.delete_dead(["3"])
    queue.delete(["6", "7"])
    list(queue.dump())
    queue.load(queue.dump(), again=True)
    assert queue.damages() == ()
    queue.repair()
    queue.reshard(7)
    assert queue.stored_spec().layout.shards == 7
    Audit(app).write(Change("anna", "here", "bury", "record"), "done")
    assert denied(client) == []
    assert len(ACTIONS) > 20
    _close(app)


def test_a_worker_works(client, path):
    app = _app(path, "worker", client)
    task = app.tasks["record"]
    task.perform_async([{"id": str(n), "payload": n} for n in range(50)])
    Lowkiq(app, context_of(app)).drain(task)
    assert task.ordered_queue.stats().processed == 50
    assert denied(client) == []
    _close(app)


@pytest.mark.parametrize("queues", [(), ("orders",)])
def test_a_worker_writes_samples_of_all_spans(client, user, queues):
    """Its rules had the key of the hour only, so that each heartbeat with samples was refused."""
    report = NodeReport("w", "w 1", 1, 10.0, False, False, ("orders",), (), 1.0, 1.0, 0.0)
    samples = (("orders", Counters(1000.0, (1, 2))),)
    told = RedisStore(user("worker", *queues)).beat([], "w 1", 2, 1, NodeUpdate(report, 1.0, samples=samples))
    assert isinstance(told.reply, UpdateReply), told.reply
    assert denied(client) == []


def test_a_worker_of_one_queue_works(client, path):
    app = _app(path, "worker", client, "record")
    app.tasks["record"].delay("1", "x")
    Lowkiq(app, context_of(app)).drain(app.tasks["record"])
    assert app.tasks["record"].ordered_queue.stats().processed == 1
    assert denied(client) == []
    _close(app)


def _app(path, role, client, *queues):
    app = proj.make_app(broker_url=f"redis+socket://{path}")
    if role is not None:
        name = make_user(client, role, *queues)
        app.conf.lowkiq_redis_options = {"username": name, "password": PASSWORD}
    return app


def _close(*apps):
    for app in apps:
        app._lowkiq_context.store.close()
        app.close()


# -- what each must not do

ALL = tuple(ROLES)
#: A command, and the roles that must not run it on a key of the queue.
FORBIDDEN = [
    (("GET", "celery"), ALL),
    (("SET", SHARD["jobs"], "x"), ALL),
    (("LPUSH", "celery", "a message"), ALL),
    (("HSET", "lowkiq-other", "a", "b"), ALL),
    (("KEYS", "*"), ALL),
    (("SCAN", "0"), ALL),
    (("FLUSHALL",), ALL),
    (("FLUSHDB",), ALL),
    (("CONFIG", "GET", "requirepass"), ALL),
    (("CONFIG", "SET", "dir", "/tmp"), ALL),
    (("ACL", "LIST"), ALL),
    (("ACL", "SETUSER", "mallory", "on"), ALL),
    (("MONITOR",), ALL),
    (("SHUTDOWN",), ALL),
    (("REPLICAOF", "NO", "ONE"), ALL),
    (("CLIENT", "KILL", "ID", "1"), ALL),
    (("MIGRATE", "h", "1", SHARD["jobs"], "0", "1"), ALL),
    (("DUMP", SHARD["jobs"]), ALL),
    (("EVAL", "return 1", "0"), ALL),
    (("SUBSCRIBE", "__keyspace@0__:x"), ALL),
    (("PUBLISH", "celery.pidbox", "x"), ALL),
    (("PUBLISH", channel("orders"), "0 released"), ("reader",)),
    (("HSET", SHARD["jobs"], "1", "x"), ("reader",)),
    (("ZADD", SHARD["due"], "1", "1"), ("reader",)),
    (("ZREM", SHARD["dead"], "1"), ("reader",)),
    (("HDEL", queue_key("orders"), "shards"), ("reader",)),
    (("EXPIRE", SHARD["jobs"], "1"), ("reader",)),
    (("DEL", SHARD["jobs"]), ("reader", "caller")),
    (("XADD", AUDIT_KEY, "*", "text", "{}"), ("reader", "caller", "worker")),
    (("XTRIM", AUDIT_KEY, "MAXLEN", "0"), ALL),
    (("DEL", AUDIT_KEY), ("reader", "caller", "worker")),
    (("XREVRANGE", AUDIT_KEY, "+", "-"), ("caller", "worker")),
    (("HGET", SHARD["dead_jobs"], "1"), ("caller",)),
    (("HGET", SHARD["dead_errors"], "1"), ("caller",)),
    (("HGETALL", SHARD["lease"]), ("caller",)),
    (("HSET", SHARD["lease"], "owner", "mallory"), ("caller", "reader")),
    (("HSET", SHARD["crash_marks"], "1", "x"), ("caller", "reader")),
    (("HSET", "lowkiq:1:nodes:{orders}", "mallory 1", "1"), ("caller", "reader", "operator")),
    (("HSET", "lowkiq:1:failures:{orders}", "a", "b"), ("caller", "reader")),
]


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_must_not_do(role, user, client, filled):
    client.xadd(AUDIT_KEY, {"text": "{}"})
    connected = user(role)
    for command, roles in FORBIDDEN:
        if role in roles:
            refused = f"{role} ran {command}"
            with pytest.raises(redis.exceptions.NoPermissionError):
                pytest.fail(f"{refused}: {connected.execute_command(*command)}")
    assert client.xlen(AUDIT_KEY) == 1
    assert client.hlen(SHARD["jobs"]) > 0


@pytest.mark.parametrize("role", ROLES)
def test_another_queue_is_out_of_reach(role, user, client):
    other = QueueSpec("pay", 2)
    RedisStore(client).push(other, [Call("1", b"secret")])
    (held,) = [shard_keys(one) for one in other.shard_refs() if client.exists(shard_keys(one)["jobs"])]
    connected = user(role, "orders")
    commands = [("HGET", held["jobs"], "1"), ("HGET", queue_key("pay"), "shards")]
    if role != "reader":
        commands += [("HSET", held["jobs"], "1", "x"), ("PUBLISH", channel("pay"), "0 0")]
    for command in commands:
        with pytest.raises(redis.exceptions.NoPermissionError):
            connected.execute_command(*command)
    if role != "reader":
        with pytest.raises(AccessDenied):
            RedisStore(connected).push(other, [Call("2", b"x")])


def test_an_operator_cannot_delete_the_audit_log(user, client, filled):
    client.xadd(AUDIT_KEY, {"text": "{}"})
    connected = user("operator")
    if client.info("server")["redis_version"].startswith("6."):
        assert connected.execute_command("DEL", AUDIT_KEY) == 1, "6.2 gives a right to all keys of a user"
        return
    for command in (("DEL", AUDIT_KEY), ("EXPIRE", AUDIT_KEY, "1"), ("RENAME", AUDIT_KEY, AUDIT_KEY)):
        with pytest.raises(redis.exceptions.NoPermissionError):
            connected.execute_command(*command)


@pytest.mark.parametrize("role", ["caller", "reader"])
def test_a_caller_and_a_reader_act_on_no_job(role, user, filled):
    actions = Actions(RedisStore(user(role)).client)
    acts = (
        lambda: actions.delete_dead(QUEUE, ["1"]),
        lambda: actions.requeue(QUEUE, ["1"]),
        lambda: actions.bury(QUEUE, ["4"], b"reason"),
        lambda: actions.delete(QUEUE, ["4"]),
    )
    for act in acts:
        with pytest.raises(AccessDenied):
            act()


@pytest.mark.parametrize("role", ["caller", "reader"])
def test_a_caller_and_a_reader_claim_nothing(role, user, filled):
    store, shard = RedisStore(user(role)), QUEUE.shard_refs()[0]
    with pytest.raises(AccessDenied):
        store.acquire(QUEUE, shard, "me", filled.observe([shard])[0], 0)


def test_a_reader_pushes_nothing(user, filled):
    with pytest.raises(AccessDenied):
        RedisStore(user("reader")).push(QUEUE, [Call("1", b"x")])


def test_an_operator_that_may_load_no_script_begins_no_move(user, filled, client):
    """The refused load counted as a move that another process has begun: `reshard` asked without an end."""
    connected = user("operator")
    right = "-script" if version_of(client) < (7, 0) else "-script|load"
    client.execute_command("ACL", "SETUSER", "lowkiq-operator", right)
    client.script_flush()
    # Loads the script that comes before.
    registry.registered(filled.client, QUEUE)
    with pytest.raises(AccessDenied, match="script"):
        RedisStore(connected).begin_migration("orders", 4)


#: What a caller needs for no call, though its scripts declare these keys.
OF_NO_CALL = [
    ("HGET", SHARD["errors"], "1"),
    ("HGET", SHARD["tries"], "1"),
    ("ZRANGE", SHARD["dead"], "0", "-1"),
    ("ZREM", SHARD["dead"], "1"),
    ("ZRANGE", SHARD["claimed"], "0", "-1"),
    ("ZREM", SHARD["paused"], "1"),
    ("ZADD", SHARD["paused"], "1", "1"),
    ("HDEL", SHARD["processing"], "1"),
]


@pytest.mark.parametrize("command", OF_NO_CALL, ids=lambda command: f"{command[0]} {command[1][-9:]}")
def test_a_caller_reaches_nothing_that_no_call_needs(user, client, filled, command):
    """Neither stored errors nor ids of the morgue; it hides no dead job, and pauses and releases no id."""
    connected, (name, key, *values) = user("caller", "orders"), command
    by_script = f"return redis.call('{name}', KEYS[1], {', '.join(map(repr, values))})"
    sha = client.script_load(by_script)
    if version_of(client) < (7, 0):
        connected.execute_command(*command)
        connected.execute_command("EVALSHA", sha, 1, key)
        return
    with pytest.raises(redis.exceptions.NoPermissionError):
        connected.execute_command(*command)
    with pytest.raises(redis.exceptions.ResponseError, match="can't access at least one of the keys"):
        connected.execute_command("EVALSHA", sha, 1, key)


def test_a_caller_without_trackers_calls_and_reaches_no_tracked_group(client, path):
    tracker = TrackerStore(RedisStore(client).client).open("group", 3600)
    key = TrackerKeys(tracker)["tracker"]
    words = rules("caller", ("orders",), version_of(client), trackers=False)
    client.execute_command("ACL", "SETUSER", "plain", *words, f">{PASSWORD}")
    with redis.Redis(unix_socket_path=path, username="plain", password=PASSWORD) as connected:
        RedisStore(connected).push(QUEUE, [Call("new", b"x")])
        for command in (("HGET", key, "name"), ("ZADD", TRACKERS_KEY, "1", "x")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                connected.execute_command(*command)
        assert not [word for word in words if "track" in word]
    client.execute_command("ACL", "DELUSER", "plain")


# -- what Redis cannot keep apart; docs/permissions.md says so


def test_roles_of_one_queue_reach_all_tracked_groups(user, client):
    """With payloads of other queues, without masks."""
    trackers = TrackerStore(RedisStore(client).client)
    tracker = trackers.open("group", 3600)
    trackers.add(tracker, [NewCall("call", "pay", "1", b"password=hunter2")])
    connected = user("caller", "orders")
    assert b"hunter2" in connected.execute_command("HGET", TrackerKeys(tracker)["tracked"], "call")


def test_a_caller_can_resume_its_queue(user, client, filled):
    Pausing(filled.client).switch_queue(QUEUE, paused=True)
    assert user("caller", "orders").execute_command("HDEL", queue_key("orders"), "paused") == 1


def test_a_caller_can_make_a_paused_job_due(user, client, filled):
    """What `paused` has does not change, but the job lies where claims look."""
    spec = QueueSpec("single", 1)
    filled.push(spec, [Call("1", b"x", 1.0, 1.0)])
    Pausing(filled.client).switch_ids(spec, ["1"], paused=True)
    keys = shard_keys(spec.shard_refs()[0])
    connected = user("caller", "single")
    assert connected.execute_command("ZADD", keys["due"], "1", "1") == 1
    assert connected.execute_command("ZREM", keys["due_paused"], "1") == 1


def test_an_operator_can_empty_the_audit_log(user, client):
    """XADD has an option that deletes the entries before; the lines of the log stay."""
    client.xadd(AUDIT_KEY, {"text": "{}"})
    user("operator").execute_command("XADD", AUDIT_KEY, "MAXLEN", "0", "*", "text", "{}")
    assert client.xlen(AUDIT_KEY) == 0


@pytest.mark.parametrize("role", ROLES)
def test_each_role_can_stop_redis_with_a_script_that_does_not_end(role, user, client):
    """Only who may kill the script, or restart Redis, ends it."""
    connected = user(role)
    sha = connected.execute_command("SCRIPT LOAD", "while true do end")
    before = client.config_get("lua-time-limit")["lua-time-limit"]
    client.config_set("lua-time-limit", 1)
    ended = []

    def run():
        try:
            connected.execute_command("EVALSHA", sha, 0)
        except redis.exceptions.ResponseError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: _is_busy(client))
    finally:
        client.script_kill()
        thread.join(30)
        client.config_set("lua-time-limit", before)
    assert "killed" in ended[0].lower()


def _is_busy(client):
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        return str(error).startswith("BUSY") or "busy" in str(error).lower()
    return False


def test_a_caller_can_write_what_a_push_writes(user, filled, client):
    """Not by our code: by a command of its own, so it can change and delete what waits in its queues."""
    connected = user("caller", "orders")
    assert connected.execute_command("HDEL", SHARD["jobs"], *client.hkeys(SHARD["jobs"])) > 0


def test_a_script_runs_any_of_its_users_commands(user, filled):
    connected = user("caller", "orders")
    sha = connected.execute_command("SCRIPT LOAD", "return redis.call('HLEN', KEYS[1])")
    assert connected.execute_command("EVALSHA", sha, 1, SHARD["jobs"]) > 0


def test_an_operator_could_take_a_shard(user, filled):
    assert user("operator").execute_command("HSET", SHARD["lease"], "owner", "mallory") >= 0


def test_readers_need_keys_with_write_permission(client, path, filled):
    """Redis 7 has %R~, but EVALSHA asks for both of all keys of a script."""
    if client.info("server")["redis_version"].startswith("6."):
        pytest.skip("6.2 has no permissions of keys")
    words = [re.sub("^~", "%R~", word) for word in rules("reader", (), version_of(client))]
    client.execute_command("ACL", "SETUSER", "half", *words, f">{PASSWORD}")
    with redis.Redis(unix_socket_path=path, username="half", password=PASSWORD) as connected:
        script = load("stats").call(SHARD)
        sha = client.script_load(script.script.text(False))
        with pytest.raises(redis.exceptions.NoPermissionError):
            connected.evalsha(sha, len(script.keys), *script.keys, *script.values)
    client.execute_command("ACL", "DELUSER", "half")
