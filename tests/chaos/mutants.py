"""Workers with a seeded fault: ``celery -A tests.chaos.mutants``, the fault's name in LOWKIQ_MUTANT.

``pytest -p tests.chaos.mutants`` runs tests with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_lowkiq.rules import leases as watching
from celery_lowkiq.rules import shares
from celery_lowkiq.store import claims as batches
from celery_lowkiq.store import records, redis_store
from celery_lowkiq.store import script as scripts
from celery_lowkiq.worker import exclusion, lane
from tests.chaos import app as chaos_app

VARIABLE = "LOWKIQ_MUTANT"


@dataclass(frozen=True)
class Mutant:
    """What is changed, under which faults, and which gates may find it."""

    apply: Callable[[], None]
    faults: frozenset[str]
    gates: frozenset[str]
    exclusion: str = "cooperative"
    #: Lease time in s.
    lease: float = 1.0


def script(file: str, text: str, instead: str) -> Callable[[], None]:
    """Another text in a Lua file. Fails when the text is not there any more."""

    def apply() -> None:
        read = scripts._read

        def mutated(name: str) -> str:
            source = read(name)
            if name != file:
                return source
            assert source.count(text) == 1, f"{file} has changed: the mutant needs another text"
            return source.replace(text, instead)

        scripts._read = mutated

    return apply


def value(module: Any, name: str, instead: Any) -> Callable[[], None]:
    """Another value in a module or class."""

    def apply() -> None:
        assert hasattr(module, name)
        setattr(module, name, instead)

    return apply


def both(*changes: Callable[[], None]) -> Callable[[], None]:
    def apply() -> None:
        for change in changes:
            change()

    return apply


def _descending(job_id: bytes, record: bytes, parse: Any = records.parse_processing) -> Any:
    job = parse(job_id, record)
    return job._replace(payloads=job.payloads[::-1])


def _slow_acquire(self: Any, *args: Any, acquire: Any = redis_store.RedisStore.acquire_all) -> Any:
    time.sleep(0.1)
    return acquire(self, *args)


#: No fault in itself, as an unmutated run with it shows: it gives others time between a look and a take.
SLOW_LINE = value(redis_store.RedisStore, "acquire_all", _slow_acquire)

EPOCH = "math.max(tonumber(epoch) + 1, tonumber(known_epoch) + 1, math.floor(now / 1000))"
COMPARE = "former ~= seen_owner or epoch ~= seen_epoch or counter ~= seen_counter"
PUT_BACK = "recover(id, job, seconds(at))"

MUTANTS = {
    "no epoch check": Mutant(
        script("lib/lease.lua", "current[1] == owner and current[2] == epoch", "true"),
        frozenset({"freeze", "cut"}),
        frozenset({"accepted stale writes"}),
    ),
    "no recovery": Mutant(
        script("acquire.lua", PUT_BACK, ""),
        frozenset({"kill"}),
        frozenset({"lost payloads"}),
    ),
    "half a recovery": Mutant(
        script("acquire.lua", PUT_BACK, "job.items = {job.items[1]}\n" + PUT_BACK),
        frozenset({"kill"}),
        frozenset({"lost payloads"}),
    ),
    "no compare before the set": Mutant(
        both(script("acquire.lua", COMPARE, "false"), SLOW_LINE),
        frozenset({"kill", "cut"}),
        frozenset({"overlapping executions"}),
    ),
    "early takeover": Mutant(
        value(watching, "TAKEOVER_LEASES", 0.15),
        frozenset({"kill", "freeze"}),
        frozenset({"overlapping executions", "accepted stale writes"}),
    ),
    "late takeover": Mutant(
        value(watching, "TAKEOVER_LEASES", 2.5),
        frozenset({"kill"}),
        frozenset({"takeover s"}),
    ),
    "a share that is kept for a node that has just begun": Mutant(
        value(shares.Member, "is_new", lambda *_: False),
        frozenset({"kill"}),
        frozenset({"takeover s"}),
        # So long that a node begins before the lease ends of the one whose place it takes.
        lease=5.0,
    ),
    "naive epoch": Mutant(
        script("acquire.lua", EPOCH, "tonumber(epoch) + 1"),
        frozenset({"kill", "rollback"}),
        frozenset({"epochs that do not grow"}),
    ),
    "no deadline in strict mode": Mutant(
        value(exclusion.Strict, "_set", lambda self: None),
        frozenset({"freeze"}),
        frozenset({"overlapping executions"}),
        exclusion="strict",
    ),
    "renewals that move nothing": Mutant(
        both(
            script(
                "renew_many.lua", "type(redis.pcall('HINCRBY', lease, 'counter', 1)) ~= 'number'", "false"
            ),
            script("renew_many.lua", "mark_turn(lease, current[4], epoch, turn)", ""),
        ),
        frozenset({"kill"}),
        frozenset({"overlapping executions"}),
    ),
    "a release while a batch runs": Mutant(
        both(
            script("release.lua", "redis.call('ZCARD', claimed) > 0", "false"),
            value(lane.Lane, "working", property(lambda self: frozenset())),
        ),
        frozenset({"kill"}),
        frozenset({"overlapping executions"}),
    ),
    "payloads in the wrong order": Mutant(
        value(batches, "parse_processing", _descending),
        frozenset({"freeze"}),
        frozenset({"order inversions"}),
    ),
    "marks of suspects that stay": Mutant(
        script("settle.lua", "    redis.call('HDEL', crash_marks, id)\n", ""),
        frozenset({"kill"}),
        frozenset({"leftover keys"}),
    ),
}

#: Random faults need luck to meet these: they ask for a command that comes twice or late, or for a failover
#: between a release and the next look.
OF_THE_STORE = {
    "no look at which server it is": value(watching.LeaseWatch, "released", lambda self: not self.seen.owner),
    "a settle that ignores the claim's number": script(
        "settle.lua", "if numbers[i] == claim then", "if numbers[i] then"
    ),
    "a claim that takes ids in processing": script(
        "claim.lua", "suspected == 0 and busy == 0 and", "suspected == 0 and"
    ),
    "a push that is merged again when repeated": script(
        "push.lua",
        "if last and tonumber(string.match(last, '^%d+') or 0) >= tonumber(n) then",
        "if false then",
    ),
    "a push that overlooks paused ids": script(
        "push.lua", "policy == '' and not any_special", "policy == ''"
    ),
    "a push that takes no call for a repeated id": script(
        "push.lua", "not record and not first[id]", "not record"
    ),
    "a claim that takes a failed job for a plain one": script("claim.lua", "not failures[i] and ", ""),
    "a settle that forgets suspects": script("settle.lua", "and not any_suspect and", "and"),
    "a renewal that sets a turn back when it is late": script(
        "lib/lease.lua", "of ~= epoch or tonumber(before) < tonumber(turn)", "true"
    ),
    "a release that names the server that it reaches": both(
        script("release.lua", " or server ~= server_name()", ""),
        script("release.lua", "'server', server)", "'server', server_name())"),
    ),
    "a lost lease that is free at once when it is released late": script(
        "lib/lease.lua", "'server', 'lost'", "'server', 'found'"
    ),
    "an acquire that keeps the turn of the time before": script(
        "acquire.lua", "redis.call('HDEL', lease, 'turn')", ""
    ),
    "a claim that is not repeated": script(
        "claim.lua", "local is_new = tonumber(request) > last_request", "local is_new = true"
    ),
}

#: Ways to run over a gap, or to keep an id closed for ever: tests/store/test_holds.py finds them.
OF_HOLDS = {
    "a death that holds nothing": script("lib/morgue.lua", "    hooks.died(id, updated_at)\n", ""),
    "a hold that leaves its job claimable": script("lib/waiting.lua", "  index_move(id)\n", ""),
    "an index that overlooks held ids": script(
        "lib/waiting.lua",
        "if any_paused and redis.call('ZSCORE', paused, id) then",
        "if any_paused and tonumber(redis.call('ZSCORE', paused, id) or -1) >= 0 then",
    ),
    "a resume that ends a hold": script(
        "pause_ids.lua", "set_pause(ARGV[i], held_at,", "set_pause(ARGV[i], nil,"
    ),
    "an end of a hold that ends a pause": script(
        "lib/waiting.lua", "set_pause(id, nil, paused_at)", "set_pause(id, nil, nil)"
    ),
    "a requeue that opens the id in its first step": script(
        "requeue.lua", "      if cut then\n", "      if cut then\n        end_hold(id)\n"
    ),
    "a requeue that leaves the id held": script("requeue.lua", "        end_hold(id)\n", ""),
    "a deletion that opens the id in its first step": script(
        "delete_dead.lua", "      if more then\n", "      if more then\n        end_hold(id)\n"
    ),
    "a deletion that leaves the id held": script("delete_dead.lua", "      end_hold(id)\n", ""),
    "an edit that leaves the id held": script("edit_dead.lua", "  end_hold(id)\n", ""),
    "an import that forgets holds": script(
        "import_jobs.lua", "set_pause(id, held_there or held_at,", "set_pause(id, held_at,"
    ),
    "an import that forgets a pause": script(
        "import_jobs.lua", "paused_there or paused_at)", "paused_there)"
    ),
    "a load that holds nothing": script("load.lua", "  begin_hold(id, when)\n", ""),
    "a takeover whose poison pill holds nothing": script(
        "acquire.lua", "crashes.count policies.hold", "crashes.count"
    ),
    "a settle whose deaths hold nothing": script(
        "settle.lua", "policies.rate_per_id policies.hold", "policies.rate_per_id"
    ),
    "a push that overlooks hold_max": script("push.lua", "policies.hold policies.due", "policies.due"),
    "a hold_max that does not count the call": script(
        "lib/policies.lua", "length + count > options.hold", "length > options.hold"
    ),
    "a hold of ids without dead payloads": script(
        "hold_ids.lua", "redis.call('ZSCORE', dead, id) and begin_hold", "begin_hold"
    ),
    "a bury by hand that holds": script(
        "bury.lua", "-- USES: time payloads.change waiting", "-- USES: time policies.hold waiting"
    ),
    "a dump that forgets holds": script(
        "dump.lua", "any_paused and redis.call('ZSCORE', paused, id) or ''", "''"
    ),
}

if VARIABLE in os.environ:
    changes = {
        "a slow line": SLOW_LINE,
        **OF_THE_STORE,
        **OF_HOLDS,
        **{name: m.apply for name, m in MUTANTS.items()},
    }
    changes[os.environ[VARIABLE]]()


def __getattr__(name: str) -> Any:
    """``app``, that of the chaos run."""
    if name != "app":
        raise AttributeError(name)
    return chaos_app.app
