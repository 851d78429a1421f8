"""Migrations of a queue, as its scripts and the mover make them, under random faults.

LOWKIQ_SIMULATIONS is how many, from LOWKIQ_SIMULATION_SEED on.
"""

from __future__ import annotations

import inspect
import os
import random
import textwrap
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
import redis

from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, ShardRef
from celery_lowkiq.store import durability
from celery_lowkiq.store import resharding as movers
from celery_lowkiq.store import resharding as strays
from celery_lowkiq.store import script as scripts
from celery_lowkiq.store.durability import Durability, Server
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations, Mover
from tests.chaos.mutants import script
from tests.marks import full, other_each_time
from tests.simulation import failovers, operators
from tests.simulation.resharding import simulate
from tests.simulation.resharding_checks import Violation
from tests.store import resharding as words

#: What all servers are taken for.
A_SERVER = Server("any", True)
COUNT = int(os.environ.get("LOWKIQ_SIMULATIONS", "10"))
FIRST = int(os.environ.get("LOWKIQ_SIMULATION_SEED", "0"))
CHUNK = 10


@pytest.fixture
def client(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        yield client


@pytest.mark.random
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_a_queue_that_is_resharded_loses_doubles_and_reorders_nothing(client, first):
    seeds = range(first, min(first + CHUNK, FIRST + COUNT))
    totals = [simulate(client, seed) for seed in seeds]
    assert sum(found.migrations for found in totals) >= len(seeds)
    assert sum(found.pairs for found in totals) > 100 * len(seeds)


@other_each_time
@pytest.mark.full
@pytest.mark.random
@pytest.mark.timeout(0)
def test_other_runs_each_time(client, rounds):
    first = random.SystemRandom().randrange(10**6, 10**9)
    for count in rounds(10 * CHUNK):
        for seed in range(first, first + count):
            simulate(client, seed)
        first += count


def test_a_seed_replays(client):
    assert simulate(client, 3, 500) == simulate(client, 3, 500)


# -- seeded faults


@contextmanager
def seeded(*changes):
    """Scripts and the mover with a fault."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(scripts, "_read", scripts._read))
        for change in changes:
            if isinstance(change, tuple):
                stack.enter_context(mock.patch.object(*change))
            else:
                change()
        scripts.load.cache_clear()
        stack.callback(scripts.load.cache_clear)
        yield


def found(client, changes, seeds):
    never = ((operators, "HOLDING", 0.0), (failovers, "FAILING", 0.0), (failovers, "OWN_KEY", 0.0))
    with seeded(*never, *changes):
        for seed in seeds:
            try:
                simulate(client, seed)
            except Violation:
                return True
    return False


def _opens_after_each_fence(self, stored):
    migration = stored.migration
    for index in migration.shards:
        fence = self._shards.call("fence", index, gen=migration.gen, route=migration.layout.route)
        ((_, gen, score, call, *_),) = self.client.all([fence])
        if int(gen) != migration.gen:
            return False
        floors = {"score": int(score), "last_call": int(call)}
        opens = [self._open_call(stored, n, floors) for n in migration.shards]
        opened = self.client.all(opens)
    return all(route != b"closed" for route, _ in opened)


def without(method, line, instead=""):
    """A method of the mover without a line of its text, or with another one."""
    source = textwrap.dedent(inspect.getsource(getattr(Mover, method)))
    assert source.count(line) == 1, f"{method} has changed: the mutant needs another text"
    made = {}
    exec(source.replace(line, instead), vars(movers), made)
    return (Mover, method, made[method])


FAILING = (failovers, "FAILING", 1.0)
OWN_KEY = (FAILING, (failovers, "OWN_KEY", 1.0))
CHECKS_ROUTE_FIRST = """if stored[1] ~= shards then
  return redis.error_reply('SHARDS ' .. (stored[1] or '0'))
end
local last = redis.call('HGET', senders, sender)
"""
KEEPS_ENDED = """  if gen ~= '0' and not string.find(shards, '>', 1, true) then
    redis.call('HSET', queue, 'gen', gen)
  elseif gen ~= '0' then
"""
HOLD = "      index_hold(id, record.perform_in)\n"
HOLDING = (operators, "HOLDING", 1.0)
FAULTS = {
    "a new job of an id that has more elsewhere is due": (
        script("push.lua", "if arrives[i] and", "if false and"),
    ),
    "a repeated push is refused for its route": (
        script("push.lua", "local last = redis.call('HGET', senders, sender)\n", CHECKS_ROUTE_FIRST),
    ),
    "a transfer is forgotten before it is received": (
        script("export.lua", "sent, last, shard, last .. ' ' .. data)", "sent, last)"),
    ),
    "each transfer has the same number": (
        script(
            "export.lua",
            "math.max(tonumber(redis.call('HGET', outbox, sent) or 0), tonumber(number)) + 1",
            "1",
        ),
    ),
    "a repeated transfer is received again": (
        script(
            "import_jobs.lua",
            "if tonumber(redis.call('HGET', outbox, received) or 0) >= tonumber(number) then",
            "if false then",
        ),
    ),
    "a push moves what is being moved": (
        script("lib/waiting.lua", "  if any_moving and is_moving(id) then\n", "  if false then\n"),
    ),
    "a part of an id is claimed where it goes": (
        script("import_jobs.lua", HOLD, HOLD.replace("index_hold(", "due_add({record.perform_in, id}) --")),
    ),
    "what has no job stays where it was": ((strays, "SEARCHED", ("due",)),),
    "a shard opens with its own last score": (
        script("open.lua", "if tonumber(known or 0) < tonumber(floor) then", "if false then"),
    ),
    "what is in processing leaves": (
        script(
            "export.lua",
            "local is_busy = all_busy or numbers[i] or redis.call('HEXISTS', processing, id) == 1",
            "local is_busy = false",
        ),
    ),
    "a part of an id is claimed where it was": (script("export.lua", "      hold(id)\n", ""),),
    "a part of an id is claimed where it was, in a pause": (
        script("stay.lua", "redis.call('HEXISTS', outbox, 'part:' .. id) == 1", "false"),
    ),
    "what holds an id stays where it was": (
        HOLDING,
        script("import_jobs.lua", "held_there or held_at", "held_at"),
    ),
    "an id of which a part has left is requeued": (
        HOLDING,
        script("lib/morgue.lua", "if route and string.find(route, '%D') then", "if false then"),
    ),
    "a job leaves before its dead payloads": (
        HOLDING,
        script("export.lua", "if not more_dead then", "if true then"),
    ),
    "a requeue opens the id in its first step": (
        HOLDING,
        script("requeue.lua", "      if cut then\n", "      if cut then\n        end_hold(id)\n"),
    ),
    "shards open before all are closed": ((Mover, "_flip", _opens_after_each_fence),),
    "a mover waits for no replica": (FAILING, (Durability, "confirm", lambda *_: None)),
    "a master confirms what another one took": (FAILING, (durability, "_at", lambda *_: A_SERVER)),
    "a shard opens before a replica knows that others are closed": (
        FAILING,
        without("_flip", "    self._confirm(migration.shards, servers)\n"),
    ),
    "a transfer is forgotten before a replica has it": (
        FAILING,
        without("_transfer", "    self._confirm((export.shard for export, _ in arrived), servers)\n"),
    ),
    "a shard stays closed whose opening a failover has lost": (
        FAILING,
        without("_move", 'any(found.route == "closed" for found in moves.values())', "False"),
    ),
    "a queue keeps the phase of a migration before its last one": (
        *OWN_KEY,
        script("register.lua", "  if gen ~= '0' then\n", KEEPS_ENDED),
    ),
    "a migration ends with jobs on their way": (
        (movers, "has_sorted", lambda *_: True),
        (movers, "is_finished", lambda *_: True),
    ),
}


#: Where to begin for a fault that runs with smaller seeds do not find, or find late.
FIRST_SEEDS = {
    "a part of an id is claimed where it was": 100,
    "a part of an id is claimed where it goes": 3,
    "what holds an id stays where it was": 1,
    "a job leaves before its dead payloads": 3,
    "shards open before all are closed": 1,
    "a push moves what is being moved": 2,
    "what is in processing leaves": 4,
    "an id of which a part has left is requeued": 3,
    "a requeue opens the id in its first step": 3,
    "a mover waits for no replica": 4,
    "a transfer is forgotten before a replica has it": 1,
    "a shard opens before a replica knows that others are closed": 2,
    "a queue keeps the phase of a migration before its last one": 104404492,
}
#: Faults that it takes long to find.
RARE = {
    "a job leaves before its dead payloads",
    "a migration ends with jobs on their way",
    "a part of an id is claimed where it was",
    "a queue keeps the phase of a migration before its last one",
    "a shard opens before a replica knows that others are closed",
    "a shard stays closed whose opening a failover has lost",
    "a part of an id is claimed where it was, in a pause",
    "a shard opens with its own last score",
    "shards open before all are closed",
    "a repeated push is refused for its route",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [full(fault) if fault in RARE else fault for fault in FAULTS])
def test_a_seeded_fault_is_found(client, fault):
    first = FIRST_SEEDS.get(fault, 0)
    assert found(client, FAULTS[fault], range(first, first + 100))


# -- movers that wake up in another migration, and others that random runs rarely find

TWO = QueueSpec(words.NAME, shards=2, batch_size=100)


def _run(store, name, index, rest=(), /, **args):
    keys = shard_keys(ShardRef(words.NAME, index))
    return store.client.call(scripts.load(name).call(keys, rest, **args))


def _ids(store, shards):
    """All ids that wait, by shard."""
    return {
        index: {each.decode() for each in store.client.servers.redis.hkeys(words.key("jobs", index))}
        for index in range(shards)
    }


def a_late_relay(store):
    """Of the migration before: jobs that another one moves stay where no claim takes them."""
    ids = [words.someone(4, home=1) for _ in range(3)]
    store.push(TWO, [Call(job_id, b"x") for job_id in ids])
    four = words.resharded(store, TWO, 4)
    words.until(store.client.servers.redis, words.begun(store, four, 6), "move")
    _run(store, "relay", 1, ids, gen=1, channel="c", index=1)
    assert store.client.servers.redis.zcard(words.key("due", 1)) == 0


def a_late_fence(store):
    """Of a migration before, when the number of shards is the same again: the shard stays open."""
    store.push(TWO, [Call("any", b"x")])
    queue = words.resharded(store, words.resharded(store, TWO, 4), 2)
    _run(store, "fence", 0, gen=1, route="2>4")
    assert words.pushed(store, queue, words.someone(2, home=0), b"x") == 1


def a_late_import(store):
    """Of a transfer that was received, and whose job has run since."""
    job_id = words.someone(4, home=2)
    store.push(TWO, [Call(job_id, b"x", perform_in=1.0)])
    runs = words.someone(4, home=3)
    store.push(TWO, [Call(runs, b"x", perform_in=1.0)])
    words.claimed(store, TWO, words.owned(store, TWO, 1))
    mover, queue = words.begun(store, TWO, 4), words.in_migration(TWO, 4)
    words.until(store.client.servers.redis, mover, "move")
    limits = {"limit": 1000, "max_bytes": 10**6, "counts": 0, "number": 0, "silent": ""}
    number, data, *_ = _run(store, "export", 0, [job_id.encode()], gen=1, shard=2, **limits)
    for _ in range(5):
        mover.turn()
    lease = words.owned(store, queue, 2)
    words.ended(store, queue, lease, words.claimed(store, queue, lease))
    late = {"gen": 1, "shard": 0, "number": number, "data": data, "merge": "min", "policy": ""}
    _run(store, "import_jobs", 2, **late, channel="c", index=2)
    assert words.claimed(store, queue, lease).jobs == ()


def _fails_when_all_else_has_moved(store, mover, lease, claim, job_id):
    """The job of a run follows."""
    for _ in range(40):
        mover.turn()
    words.ended(store, TWO, lease, claim, Disposition.RETRY, retry_count=0, delay=0.0, error=b"boom")
    words.until(store.client.servers.redis, mover, "idle")
    assert _ids(store, 4)[2] == {job_id}


def a_run_during_a_migration(store):
    job_id = words.someone(4, home=2)
    store.push(TWO, [Call(job_id, b"x", perform_in=1.0)])
    lease = words.owned(store, TWO, 0)
    claim = words.claimed(store, TWO, lease)
    mover = words.begun(store, TWO, 4)
    _fails_when_all_else_has_moved(store, mover, lease, claim, job_id)


def a_run_that_began_in_a_pause(store):
    job_id = words.someone(4, home=2)
    store.push(TWO, [Call(job_id, b"x", perform_in=1.0)])
    mover, migrations = words.begun(store, TWO, 4), Migrations(store.client, words.NAME)
    words.until(store.client.servers.redis, mover, "move")
    migrations.pause(True)
    mover.turn()
    lease = words.owned(store, words.in_migration(TWO, 4), 0)
    claim = words.claimed(store, TWO, lease)
    assert [job.id for job in claim.jobs] == [job_id]
    migrations.pause(False)
    _fails_when_all_else_has_moved(store, mover, lease, claim, job_id)


def a_late_stay(store):
    """Of a mover that has seen a pause which ended since: the job is waited for."""
    job_id = words.someone(4, home=2)
    store.push(TWO, [Call(job_id, b"x", perform_in=1.0)])
    mover = words.begun(store, TWO, 4)
    words.until(store.client.servers.redis, mover, "move")
    _run(store, "stay", 0, [job_id], gen=1, channel="c", index=0)
    lease = words.owned(store, words.in_migration(TWO, 4), 0)
    claim = words.claimed(store, TWO, lease)
    _fails_when_all_else_has_moved(store, mover, lease, claim, job_id)


DIRECTED = {
    a_late_relay: script("relay.lua", "if state == '' or state == 'closed' then", "if false then"),
    a_late_fence: script("fence.lua", "tonumber(stored[2] or 0) < tonumber(gen)", "true"),
    a_late_import: script(
        "import_jobs.lua",
        "if tonumber(redis.call('HGET', outbox, received) or 0) >= tonumber(number) then",
        "if false then",
    ),
    a_run_during_a_migration: script("fence.lua", "  redis.call('ZUNIONSTORE', inflight, 1, claimed)\n", ""),
    a_run_that_began_in_a_pause: script("hold.lua", "redis.call('ZUNIONSTORE', inflight, 1, claimed)\n", ""),
    a_late_stay: script("read_moves.lua", "stored[8] == stored[2] and 1 or 0", "0"),
}


@pytest.mark.parametrize("scenario", DIRECTED)
def test_a_late_mover_changes_nothing(store, scenario):
    scenario(store)


@pytest.mark.parametrize("scenario", DIRECTED)
def test_a_seeded_fault_is_found_by_its_scenario(store, scenario):
    with seeded(DIRECTED[scenario]), pytest.raises(AssertionError):
        scenario(store)
