"""``python -m tests.simulation.resharding SEED [RUNS]`` replays migrations of a queue on a real server.

The scripts and the mover are those of the house; who sends the next command is drawn from a seed. Callers
know old routes and repeat calls whose reply was lost; workers and movers die at any command, or freeze and go
on much later; each shard has a clock of its own.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules import resharding as rules
from celery_lowkiq.rules.claims import ClaimRequest, OpenClaims, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, NotOwner, StoreUnavailable
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import (
    Call,
    Disposition,
    Job,
    Layout,
    Lease,
    LeaseState,
    QueueSpec,
    Settlement,
    ShardRef,
)
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.store import durability, redis_store
from celery_lowkiq.store import resharding as movers
from celery_lowkiq.store import resharding as moving_shards
from celery_lowkiq.store.claims import claim_call, claimed, release_call, settle_calls
from celery_lowkiq.store.errors import ShardCountDiffers
from celery_lowkiq.store.keys import FORMAT, queue_key, shard_keys, shard_of_key
from celery_lowkiq.store.push import Sender, push_call
from celery_lowkiq.store.resharding import Migrations, Mover
from celery_lowkiq.store.script import ScriptCall, load
from tests.simulation import failovers, operators
from tests.simulation.resharding_checks import FinalChecks, RunChecks, Violation
from tests.simulation.virtual import InTurns, Patient, VirtualClient, clocked

QUEUE = "q"
#: Us of virtual time in a step, and at the beginning.
STEP, BEGIN = 10, 10**15
#: Steps with faults; a run that does not come to rest within eight times as many has failed.
STEPS = 2000
catch_up = Migrations.catch_up


def catch_up_at_once(migrations: Any, shards: int) -> None:
    """Nobody else acts meanwhile."""
    with migrations._client.alone():
        catch_up(migrations, shards)


#: Small, so that migrations have many turns, and ids many transfers.
LIMITS = (
    (rules, "TURN_JOBS", 8),
    (rules, "TURN_SHARDS", 4),
    (rules, "TRANSFER_IDS", 3),
    (moving_shards, "TRANSFER_PAYLOADS", 4),
    (moving_shards, "TRANSFER_BYTES", 1500),
    (Migrations, "catch_up", catch_up_at_once),
    (durability, "SystemClock", lambda: Patient),
    (durability, "read_servers", failovers.read_servers),
    (movers, "read_servers", failovers.read_servers),
)
#: Loaded before the first step, so that a seed replays.
SCRIPTS = (
    *("push", "claim", "settle", "delete_call_records", "acquire", "begin_migration", "set_phase", "fence"),
    *("open", "read_moves", "export", "import_jobs", "relay", "forget_transfer", "seal"),
    *(
        "pause_migration",
        "stay",
        "hold",
        "abort_migration",
        "restart_migration",
        "requeue",
        "hold_ids",
        "release",
    ),
    *("register", "set_shard_count", "largest_numbers", "repair_meta", "key_counts"),
)
#: What acts in each run.
ACTORS = (("caller", 3), ("old", 1), ("worker", 3), ("mover", 3), ("operator", 1))


class Actor:
    """A process: what it does next is its next command."""

    def __init__(self, kind: str, name: str, code: InTurns) -> None:
        self.kind, self.name, self.code = kind, name, code
        #: None before its first step.
        self.commands: Sequence[tuple[Any, ...]] = ()
        self.replies: list[Any] | None = None
        self.frozen_until = 0


@dataclass
class Totals:
    runs: int = 0
    steps: int = 0
    payloads: int = 0
    migrations: int = 0
    pairs: int = 0
    lost_replies: int = 0
    crashes: int = 0
    freezes: int = 0
    pauses: int = 0
    aborts: int = 0
    holds: int = 0
    failovers: int = 0
    #: Workers that go on after a failover of a master on which they have shards.
    survivors: int = 0
    #: Those that ran a job whose claim it has lost.
    lost_claims: int = 0
    requeued: int = 0
    gone_on: int = 0
    commands: int = 0

    def add(self, other: Totals) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Simulation(operators.Operators, failovers.Failovers, RunChecks, FinalChecks):
    """One run."""

    def __init__(self, client: redis.Redis, seed: int, steps: int = STEPS) -> None:
        self.chance = chance = random.Random(seed)
        self.redis = client
        self.redis.flushdb()
        self.client = VirtualClient(client, self)
        for name in SCRIPTS:
            client.script_load(clocked(load(name)).text(True))
        self.last = steps
        self.step = 0
        self.faults = True
        self.totals = Totals(runs=1)
        self.server = client.info("server")["run_id"]
        self.queue = QueueSpec(
            QUEUE,
            shards=chance.choice([1, 2, 3, 4]),
            batch_size=4,
            max_crashes=10**6,
            policies=Policies(
                drop_stale=chance.choice([None, 1e6]),
                priority=chance.choice([0, 0, 3]),
                keep=chance.choice([None, None, 10**6]),
            ),
        )
        self.prepare_failovers(seed, failovers.FAILING)
        self.holds = not self.fails and random.Random(f"holds {seed}").random() < operators.HOLDING
        if self.holds:
            self.queue = replace(
                self.queue, policies=Policies(priority=self.queue.policies.priority, hold=10**6)
            )
        self.wanted = self.highest = self.queue.shards
        client.hset(queue_key(QUEUE), mapping={"format": FORMAT, "shards": self.queue.shards})
        for index in range(self.queue.shards):
            meta = {"format": FORMAT, "shards": self.queue.shards}
            client.hset(self.keys(index)["meta"], mapping=meta)
        self.ids = [f"id{n}" for n in range(chance.choice([3, 8, 24]))]
        self.size = chance.choice([0, 0, 500])
        self.skew = [chance.choice([0, 0, 300, -200]) for _ in range(8)]
        targets = [chance.choice([1, 2, 3, 4, 6]) for _ in range(chance.choice([2, 4, 6]))]
        self.changes = {int(steps * (n + 0.5) / (len(targets) + 1)): m for n, m in enumerate(targets)}
        self.aborts = chance.choice([0, 0.05, 0.3])
        self.actors: list[Actor] = []
        self.weights: dict[str, float] = {}
        self.born = self.numbers = 0
        self.sent: dict[bytes, int] = {}
        self.acked: dict[bytes, int] = {}
        self.scores: dict[bytes, float] = {}
        self.done: dict[bytes, list[int]] = defaultdict(list)
        self.died: dict[bytes, int] = {}
        self.deaths = 0
        #: Dead payloads that hold their id, and those whose id went on without them: these run after others.
        self.held: dict[str, set[bytes]] = defaultdict(set)
        self.let_go: set[bytes] = set()
        self.retries: dict[str, dict[bytes, int]] = defaultdict(dict)
        #: Payloads whose call records were deleted before they were settled, as far as known.
        self.ending: set[bytes] = set()
        #: By id, the worker that runs it, and the shard that it was claimed in.
        self.running: dict[str, tuple[str, int]] = {}
        self.requests: Counter[Lease] = Counter()
        self.last_claims: dict[ShardRef, int] = {}

    def keys(self, index: int) -> Any:
        return shard_keys(ShardRef(QUEUE, index))

    def perhaps(self, share: float) -> bool:
        return self.faults and self.chance.random() < share

    # -- commands

    def send(self, command: tuple[Any, ...], before: tuple[Any, ...] = ()) -> Any:
        """``before``: the command before it."""
        self.totals.commands += 1
        if command[0] in ("INFO", "WAIT"):
            return self.replication(command, before)
        if command[0] == "EVALSHA":
            shard = shard_of_key(str(command[3]))
            skew = self.skew[shard.index] if shard else 0
            command = (*command, BEGIN + self.step * STEP + skew)
        try:
            return self.redis.execute_command(*command)
        except redis.ResponseError as error:
            return error

    def advance(self, actor: Actor) -> None:
        """Send one command, and with the last reply go on to the next ones."""
        if actor.commands and actor.replies is not None:
            position = len(actor.replies)
            actor.replies.append(self.send(actor.commands[position], actor.commands[position - 1]))
            if len(actor.replies) < len(actor.commands):
                return
        self.client.server.sender = actor.code
        try:
            actor.commands, actor.replies = actor.code.send(actor.replies), []
        except StopIteration:
            self.actors.remove(actor)
        finally:
            self.client.server.sender = None

    def pause_actor(self) -> None:
        """Of an actor: let others go on before its next command."""
        self.client.server.sender.wait(())

    def one(self, call: ScriptCall) -> Any:
        """Run one script; a refusal that is none of the expected ones is a violation."""
        (reply,) = self.client.calls([call])
        if isinstance(reply, LowkiqError) and not isinstance(reply, (NotOwner, ShardCountDiffers)):
            raise Violation(f"{call.script.name}: {reply}")
        return reply

    def route(self) -> Layout:
        (route,) = self.client.commands([("HGET", queue_key(QUEUE), "shards")])
        layout = Layout.parse(route.decode())
        assert layout is not None
        return layout

    def known_as(self, layout: Layout) -> QueueSpec:
        return replace(self.queue, shards=layout.shards, former_shards=layout.former)

    # -- callers

    def caller(self, old: bool) -> None:
        """Calls that go on until they are stored; an ``old`` one knows no migration, and gives up."""
        sender, layout = Sender(), Layout(self.queue.shards)
        while self.faults and self.numbers < 400:
            self.pause_actor()
            count = min(self.chance.choice([1, 1, 2, 3]), len(self.ids))
            jobs = [self.new_job(job_id) for job_id in self.chance.sample(self.ids, count)]
            while jobs:
                jobs = self.push(sender, layout, jobs)
                if old:
                    break
                if jobs or self.perhaps(0.05):
                    layout = self.route()

    def new_job(self, job_id: str) -> Call:
        self.numbers += 1
        payload = b"%s#%d#" % (job_id.encode(), self.numbers) + b"x" * self.size
        self.sent[payload] = self.step
        record = b"a call" if self.chance.random() < 0.3 else None
        return Call(job_id, payload, record=record)

    def push(self, sender: Sender, layout: Layout, jobs: list[Call]) -> list[Call]:
        parts: dict[int, list[Call]] = defaultdict(list)
        for job in jobs:
            parts[layout.home(job.id)].append(job)
        refused = []
        for index, part in parts.items():
            call = push_call(self.known_as(layout), ShardRef(QUEUE, index), sender, part)
            reply = self.one(call)
            while self.perhaps(0.08):
                self.totals.lost_replies += 1
                self.pause_actor()
                reply = self.one(call)
            if isinstance(reply, LowkiqError):
                refused += part
                self.reopen(layout, index)
            else:
                self.acked.update(dict.fromkeys((job.data for job in part), self.step))
                self.taken_by.update(dict.fromkeys((job.data for job in part), index))
        return refused

    # -- workers

    def worker(self, me: str) -> None:
        while True:
            self.pause_actor()
            index = self.a_shard()
            lease = self.acquire(me, ShardRef(QUEUE, index))
            if lease is None:
                continue
            self.requests[lease] += 1
            settled = OpenClaims(self.last_claims.get(lease.shard, 0))
            wish = ClaimRequest(self.queue, lease, self.requests[lease], settled)
            reply = self.one(claim_call(wish))
            if isinstance(reply, LowkiqError):
                continue
            claim = claimed(wish, reply)
            assert not isinstance(claim, LowkiqError)
            if claim.jobs:
                self.last_claims[lease.shard] = claim.number
            for job in claim.jobs:
                self.begins(me, job, index)
            for job in claim.jobs:
                for _ in range(self.chance.choice([1, 1, 5, 40]) if self.faults else 1):
                    self.pause_actor()
                self.settle(lease, job)

    def a_shard(self) -> int:
        """Any shard; after the faults one that has work, or is to be taken anew, so that a run ends soon."""
        shards = range(self.highest)
        if self.faults:
            return self.chance.choice(shards)
        names = ("due", "due_prioritized", "claimed")
        busy = [n for n in shards if self.redis.exists(*(self.keys(n)[name] for name in names))]
        servers = {n: self.redis.hget(self.keys(n)["lease"], "server") for n in shards}
        busy += [n for n, server in servers.items() if server not in (None, self.server.encode())]
        return self.chance.choice(busy or shards)

    def acquire(self, me: str, shard: ShardRef) -> Lease | None:
        """The worker's lease of a shard; None when the shard has another living owner."""
        fields = ("HMGET", shard_keys(shard)["lease"], "owner", "epoch", "counter", "server")
        (found,) = self.client.commands([fields])
        owner, epoch, counter, server = ((value or b"").decode() for value in found)
        if owner == me and server == self.server:
            return Lease(shard, me, int(epoch), server)
        if owner == me:
            # It gives up what another server has given; a claim returns jobs that are still in processing.
            lease = Lease(shard, me, int(epoch), self.server)
            reply = self.one(release_call(lease))
            return lease if reply == 0 else None
        if owner in {actor.name for actor in self.actors}:
            return None
        self.pause_actor()
        layout = self.route()
        seen = LeaseState(owner, int(epoch or 0), int(counter or 0), self.server, server)
        wish = LeaseWatch(self.known_as(layout), shard, seen, known_epoch=0)
        reply = self.one(redis_store._acquire_call(wish, me))
        if isinstance(reply, LowkiqError):
            self.reopen(layout, shard.index)
            return None
        return Lease(shard, me, int(reply[0]), reply[1].decode())

    def settle(self, lease: Lease, job: Job) -> None:
        fate = self.chance.choices(
            [Disposition.DONE, Disposition.RETRY, Disposition.DIE, Disposition.RETURN],
            [7, 2, 3 if self.holds else 0.5 * (not self.fails), 0.5],
        )[0]
        if self.holds and fate is Disposition.DIE:
            fate = self.chance.choice([Disposition.DIE, Disposition.BURY])
        if not self.faults:
            fate = Disposition.DONE
        delay = self.chance.choice([0.0, 5e-5, 2e-3]) if fate is Disposition.RETRY else 0.0
        ends = len(job.payloads) if fate in (Disposition.DONE, Disposition.BURY) else fate is Disposition.DIE
        records = job.calls.records if job.calls else ()
        ended = tuple((record.key, record.key) for record in records if record.payload < ends)
        settlement = Settlement(job.id, job.claim, fate, job.retry_count + 1, delay, b"boom", ended=ended)
        self.ending.update(payload.data for payload in job.payloads[:ends])
        settle, began_at = settle_calls(SettleRequest(self.queue, lease, (settlement,))), self.step
        replies = self.client.calls(settle.calls)
        reply = settle.reply(replies)
        if not isinstance(reply, (LowkiqError, type(None))) and job.id in reply.accepted:
            retry = -1 if ends else job.retry_count + (fate is Disposition.RETRY)
            known = {} if fate is Disposition.DIE else self.retries[job.id]
            self.retries[job.id] = known | dict.fromkeys((one.data for one in job.payloads), retry)
            for payload in job.payloads[:ends]:
                if fate is Disposition.DONE:
                    self.done[payload.data].append(self.step)
                    took = (lease.shard.index, began_at, self.step)
                    self.settles.setdefault(payload.data, []).append(took)
                else:
                    self.dies(job.id, payload.data)
        elif isinstance(reply, LowkiqError) and not isinstance(reply, NotOwner):
            raise Violation(str(reply))
        self.running.pop(job.id, None)
        while self.perhaps(0.05):
            self.totals.lost_replies += 1
            self.pause_actor()
            self.client.calls(settle.calls)

    # -- movers

    def mover(self) -> None:
        mover = Mover(self.client, self.queue, lease_seconds=math.inf)
        migrations = Migrations(self.client, QUEUE)
        while True:
            with suppress(StoreUnavailable):
                self.pause_actor()
                if migrations.stored() is not None:
                    mover.turn()
                elif self.route() != Layout(self.wanted):
                    migrations.catch_up(self.wanted)
                    begun = migrations.begin_caught_up(self.wanted)
                    self.totals.migrations += begun

    # -- the run

    def add(self, kind: str) -> None:
        self.born += 1
        name = f"{kind}-{self.born}"
        code = {
            "caller": lambda: self.caller(old=False),
            "old": lambda: self.caller(old=True),
            "worker": lambda: self.worker(name),
            "mover": self.mover,
            "operator": self.operator,
            "decider": self.decider,
        }[kind]
        self.actors.append(Actor(kind, name, InTurns(code)))
        self.weights[name] = self.weight()

    def weight(self) -> float:
        return self.chance.expovariate(1) ** 2 + 0.01 if self.faults else 1.0

    def run(self) -> Totals:
        for kind, count in (*ACTORS, *(operators.HOLDERS if self.holds else ())):
            for _ in range(count):
                self.add(kind)
        while not self.is_at_rest():
            self.step += 1
            self.wanted = self.changes.get(self.step, self.wanted)
            self.highest = max(self.highest, self.wanted)
            if self.step == self.last:
                self.faults = False
            if self.step % 120 == 0 or self.step == self.last:
                self.weights = {actor.name: self.weight() for actor in self.actors}
            if self.step > 8 * self.last:
                raise Violation(f"no rest: {self.redis.hgetall(queue_key(QUEUE))} {self.left()}")
            self.disturb()
            free = [each for each in self.actors if not self.faults or each.frozen_until <= self.step]
            if free:
                (actor,) = self.chance.choices(free, [self.weights[each.name] for each in free])
                if self.perhaps(0.004) and actor.kind in ("worker", "mover"):
                    self.crash(actor)
                else:
                    self.advance(actor)
        self.check()
        self.totals.steps = self.step
        self.totals.payloads = len(self.acked)
        return self.totals

    def disturb(self) -> None:
        self.disturb_masters()
        if self.perhaps(0.012):
            self.totals.freezes += 1
            self.chance.choice(self.actors).frozen_until = self.step + self.chance.choice([60, 300, 900])

    def crash(self, actor: Actor) -> None:
        self.totals.crashes += 1
        self.actors.remove(actor)
        actor.code.close()
        self.running = {job_id: run for job_id, run in self.running.items() if run[0] != actor.name}
        self.add(actor.kind)

    # -- what must hold in the end

    def is_at_rest(self) -> bool:
        if self.faults or self.step % 50:
            return False
        phase, route = self.redis.hmget(queue_key(QUEUE), "phase", "shards")
        return phase in (None, b"idle") and route.decode() == str(self.wanted) and not any(self.left())

    def left(self) -> list[int]:
        names = ("due", "due_prioritized", "due_paused", "paused", "moving", "claimed")
        return [self.redis.zcard(self.keys(n)[name]) for n in range(self.highest) for name in names]


@contextmanager
def limits() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, number in LIMITS:
            stack.enter_context(mock.patch.object(module, name, number))
        yield


def simulate(client: redis.Redis, seed: int, steps: int = STEPS) -> Totals:
    """Run one seed. Raises Violation."""
    with limits():
        simulation = Simulation(client, seed, steps)
        try:
            return simulation.run()
        except Violation as violation:
            raise Violation(f"python -m tests.simulation.resharding {seed}: {violation}") from violation
        finally:
            for actor in simulation.actors:
                actor.code.close()


def main(seed: int, runs: int) -> None:
    totals = Totals()
    with EmbeddedServer() as server, redis.Redis(unix_socket_path=server.socket_path) as client:
        for each in range(seed, seed + runs):
            try:
                totals.add(simulate(client, each))
            except Violation as violation:
                print(violation)
    print(totals)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
