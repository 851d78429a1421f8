"""A node: the worker's own runtime on a machine, with a network between it and the server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery_lowkiq.rules.claims import ClaimRequest, Due, OpenClaims, SettleRequest, lag
from celery_lowkiq.rules.errors import LowkiqError, StoreUnavailable
from celery_lowkiq.rules.leases import EXIT_TIMEOUT, LeaseWatch
from celery_lowkiq.rules.models import (
    Batch,
    Disposition,
    Lease,
    LeaseState,
    QueueSpec,
    Renewed,
    Settlement,
    ShardRef,
)
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.rules.topology import Master
from celery_lowkiq.rules.views import BeatResult, NodeUpdate, Running
from celery_lowkiq.worker.exclusion import Strict
from celery_lowkiq.worker.runtime import Runtime
from tests.simulation.checks import Checks
from tests.simulation.server import Server
from tests.simulation.world import Machine, Task, Threading, World, me

#: Lease times after which a client gives a silent Redis up.
PATIENCE = 0.5


class Network:
    """Carries calls to the server: late, never, or without an answer."""

    def __init__(self, world: World, server: Server, lease_seconds: float) -> None:
        self.world = world
        self.server = server
        self.seconds = lease_seconds
        #: How often a call gets lost, each way, arrives when its caller has given it up, and is repeated.
        self.loss = 0.0
        #: How long a call is on its way at most, in s.
        self.delay = 0.01 * lease_seconds
        self.cut: set[Machine] = set()
        #: Until when renewals of a machine are on their way, and until when its acquisitions.
        self.held: dict[Machine, float] = {}
        self.held_acquires: dict[Machine, float] = {}
        #: Those whose acquisitions arrive before that, too: redis-py repeats what was not answered.
        self.repeating: set[Machine] = set()
        #: Those whose releases get no answer.
        self.unanswered: set[Machine] = set()
        #: Those whose heartbeats alone are refused.
        self.mute: set[Machine] = set()

    def call(self, effect: Callable[[], Any]) -> Any:
        """Raises what the server raises, or StoreUnavailable."""
        chance = self.world.random
        luck = chance.random()
        if luck < self.loss:
            self._give_up()
        if luck < 2 * self.loss:
            delay = chance.random() * 1.5 * self.seconds
            self.world.later(delay, partial(self._arrive_late, effect))
            self._give_up()
        if self._repeats(luck):
            # The caller waits while redis-py connects again, maybe to another server.
            if chance.random() < 0.5:
                self._arrive_late(effect)
            me().park(chance.random() * 1.5 * self.seconds)
        server = self._travel()
        try:
            answer, error = effect(), None
        except LowkiqError as refused:
            answer, error = None, refused
        if luck < 3 * self.loss:
            self._give_up()
        if self._travel() != server:
            raise StoreUnavailable("the connection is gone")
        if error is not None:
            raise error
        return answer

    def hold_renewals(self) -> None:
        self._hold(self.held)

    def hold_acquires(self, effect: Callable[[], Any]) -> None:
        if self.held_acquires.get(me().machine, 0.0) > self.world.now and me().machine in self.repeating:
            self._arrive_late(effect)
        self._hold(self.held_acquires)

    def give_up_release(self) -> None:
        if me().machine in self.unanswered:
            self._give_up()

    def _hold(self, until: dict[Machine, float]) -> None:
        machine = me().machine
        while (seconds := until.get(machine, 0.0) - self.world.now) > 0:
            me().park(seconds * machine.rate)

    def _repeats(self, luck: float) -> bool:
        return 3 * self.loss <= luck < 4 * self.loss

    def _arrive_late(self, effect: Callable[[], Any]) -> None:
        """On whatever server there is then."""
        if self.server.down:
            return
        try:
            effect()
        except LowkiqError:
            # Nobody waits for the answer.
            self.world.note("a late call was refused")

    def _travel(self) -> int:
        me().park(self.world.random.random() * self.delay)
        if self.server.down:
            raise StoreUnavailable("connection refused")
        if me().machine in self.cut or self.server.unresponsive:
            self._give_up()
        return self.server.starts

    def _give_up(self) -> None:
        me().park(PATIENCE * self.seconds)
        raise StoreUnavailable("no answer")


class Listener:
    """A subscription: it may miss things, but not that it is cut."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._heard: list[tuple[ShardRef, float | None]] = []
        self._task: Task | None = None
        self._open = True
        network.server.listeners.append(self)

    def tell(self, shard: ShardRef, perform_in: float | None) -> None:
        if self._network.world.random.random() < self._network.loss:
            return
        self._heard.append((shard, perform_in))
        self._wake()

    def cut(self) -> None:
        self._open = False
        if self in self._network.server.listeners:
            self._network.server.listeners.remove(self)
        self._wake()

    close = cut

    def _wake(self) -> None:
        if self._task is not None:
            self._task.wake()

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float | None] | None:
        if not self._heard and self._open:
            self._task = me()
            self._task.park(timeout)
            self._task = None
        if not self._open:
            raise StoreUnavailable("the subscription is cut")
        return self._heard.pop(0) if self._heard else None


class SimStore:
    """``worker.ports.Store`` over the network."""

    def __init__(self, network: Network) -> None:
        self._call = network.call
        self._network = network
        self._server = network.server

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState | None]:
        return self._call(lambda: self._server.observe(shards))

    def acquire_all(self, wanted: Sequence[LeaseWatch], owner: str) -> list[Lease | LowkiqError]:
        def acquire(one: LeaseWatch) -> Lease:
            self._server.check_answers(one.shard)
            self._server.check_count(one.queue)
            return self._server.acquire(one.shard, owner, one.seen, one.known_epoch)

        def effect() -> list[Lease | LowkiqError]:
            return [_answer(partial(acquire, one)) for one in wanted]

        self._network.hold_acquires(effect)
        return self._call(effect)

    def renew(self, leases: Sequence[Lease], stopping: bool, turn: int) -> list[Renewed]:
        self._network.hold_renewals()
        return self._call(lambda: self._server.renew(leases, stopping, turn))

    def release(self, lease: Lease, unsettled: bool = False) -> bool | None:
        def effect() -> bool | None:
            return (
                None if self._server.is_unreachable(lease.shard) else self._server.release(lease, unsettled)
            )

        released = self._call(effect)
        self._network.give_up_release()
        return released

    def exchange(self, settle: SettleRequest | None, claim: ClaimRequest | None) -> tuple[Any, Any]:
        def effect() -> tuple[Any, Any]:
            return (
                settle and _answer(lambda: self._server.settle(settle)),
                claim and _answer(lambda: self._server.claim(claim)),
            )

        return self._call(effect)

    def retract_crashes(self, lease: Lease) -> None:
        self._call(lambda: self._server.check_answers(lease.shard))

    def beat(self, queues: Sequence[str], owner: str, lanes: int, turn: int, news: NodeUpdate) -> BeatResult:
        """What nodes say of themselves is for people: there are none here."""
        if me().machine in self._network.mute:
            raise StoreUnavailable("no heartbeat")
        return self._call(
            lambda: BeatResult(
                [self._server.beat(queue, owner, lanes, turn) for queue in queues],
                [None if self._server.queue_is_away else str(self._server.count)] * len(queues),
            )
        )

    def forget_report(self, owner: str) -> None:
        self._call(lambda: None)

    def forget_members(self, queue: str, members: Sequence[tuple[str, int]]) -> None:
        self._call(lambda: self._server.forget_members(queue, [name for name, _ in members]))

    def next_due(
        self, shards: Sequence[ShardRef], in_hand: Sequence[OpenClaims] = (), were_empty: Sequence[bool] = ()
    ) -> list[Due | None]:
        asked = list(zip(shards, in_hand, were_empty, strict=True))
        return self._call(lambda: [self._server.next_due(*one) for one in asked])

    def count_due(self, shards: Sequence[ShardRef]) -> int:
        """For people."""
        return 0

    def masters(self, shards: Sequence[ShardRef]) -> list[Master]:
        """For people, too."""
        return []

    def subscribe(self, queues: Sequence[QueueSpec]) -> Listener:
        return self._call(lambda: Listener(self._network))


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except LowkiqError as error:
        return error


class SimRunner:
    """Runs take a while; some fail, and some hold their settlements back."""

    def __init__(self, node: Node, checks: Checks) -> None:
        self._node = node
        self._checks = checks
        #: By lane.
        self._held: dict[Task, list[Settlement]] = defaultdict(list)

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        run = self._checks.begin(self._node, batch)
        me().park(self._duration())
        self._checks.end(run)
        chance = self._node.world.random
        seconds = self._node.seconds
        settlements = tuple(
            Settlement(job.id, job.claim, Disposition.DONE)
            if chance.random() > 0.05
            else Settlement(job.id, job.claim, Disposition.RETRY, job.retry_count + 1, 0.1 * seconds, b"boom")
            for job in batch.jobs
        )
        if batch.claim % 2:
            return settlements
        self._held[me()] += settlements
        return ()

    def flush(self) -> tuple[Settlement, ...]:
        return tuple(self._held.pop(me(), ()))

    def write_late(self) -> None:
        """Results take no time here."""

    def _duration(self) -> float:
        """Mostly short, on some nodes so short that many are claimed at once, but straddling the lease."""
        chance = self._node.world.random
        if chance.random() > self._node.long:
            return self._node.quick * self._node.seconds
        return (0.2 if chance.random() < 0.8 else 2.0) * chance.random() * self._node.seconds

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        self._checks.settled(batch, accepted)


class KillTimer:
    """The kernel's timer, for the strict mode: it does not care whether a process is frozen."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._generation = 0

    def set(self, at: float | None) -> None:
        self._generation += 1
        if at is not None:
            self._node.world.at(self._node.when(at), partial(self._fire, self._generation))

    def _fire(self, generation: int) -> None:
        if generation == self._generation and not self._node.dead:
            self._node.world.note(f"{self._node.name} is ended by its timer")
            self._node.die()
            self._node.restart()


class Node(Machine):
    """One start of a worker process."""

    def __init__(
        self,
        network: Network,
        threading: Threading,
        checks: Checks,
        queue: QueueSpec,
        name: str,
        *,
        strict: bool,
        lanes: int,
        restart: Callable[[], None],
    ) -> None:
        """``restart`` is what its supervisor does when it was ended."""
        chance = network.world.random
        super().__init__(network.world, name, rate=chance.uniform(0.95, 1.05), offset=chance.uniform(0, 1e4))
        self.seconds = network.seconds
        self.quick = chance.choice([0.002, 0.02])
        #: How many of its runs are not quick.
        self.long = chance.choice([0.2, 0.2, 0.6])
        self.checks = checks
        self.restart = restart
        threading.machine = self
        self.runtime = Runtime(
            SimStore(network),
            SimRunner(self, checks),
            self,
            [queue],
            lanes=lanes,
            owner=name,
            clock=self,
            scheduler_factory=lag,
            splitter=lease_splitter,
            poll_interval=0.5 * network.seconds,
            lease_seconds=network.seconds,
            window=50,
            exclusion=Strict(KillTimer(self)) if strict else None,
        )
        self.drained = False
        #: It was told to end.
        self.ending = False
        #: Until when (the world's time) it was cut off, and has no heartbeat.
        self.cut_until = self.mute_until = 0.0
        self._network = network
        #: It ends by a deadline.
        self.leaving = False
        #: Until when (the world's time) its leases would last that it gives up in its last moment.
        self.given_up: dict[ShardRef, float] = {}
        self.runtime.start()

    def die(self) -> None:
        super().die()
        self.checks.died(self)

    def shut_down(self) -> None:
        """As TERM does."""

        self.ending = True

        def drain() -> None:
            self.runtime.drain()
            self.drained = self.runtime.join()
            # The process ends.
            super(Node, self).die()

        Task(self, drain).start()

    def shut_down_by(self, seconds: float) -> None:
        """As TERM does where a deadline is set: what runs then ends with the process."""
        self.ending = self.leaving = True

        def leave() -> None:
            self.runtime.drain()
            if not self.runtime.join(seconds):
                self.runtime.abandon()
                owned = self.runtime._ownership._table.owned()
                self.given_up = {one.shard: self.when(one.deadline) for one in owned}
                self.runtime.release_at_exit(EXIT_TIMEOUT)
            self.die()

        Task(self, leave).start()

    def freeze(self, seconds: float) -> None:
        """Only what is frozen may live on for long after its last act."""
        super().freeze(seconds)
        self.given_up.clear()

    def undisturbed_since(self, when: float) -> bool:
        """Whether only the server can have kept it from renewing since then."""
        return not (self.dead or self.ending) and max(self.frozen_until, self.cut_until) < when

    @property
    def disturbed_until(self) -> float:
        """When (the world's time) the last fault of this node ends."""
        network = self._network
        held = max(network.held.get(self, 0.0), network.held_acquires.get(self, 0.0))
        return max(self.frozen_until, self.cut_until, self.mute_until, held)

    def wants(self, shard: ShardRef) -> bool:
        """Whether it would take the shard if that was free."""
        ownership = self.runtime._ownership
        table = ownership._table
        if shard not in table.wanted({shard.queue}) or table.in_use(shard):
            return False
        room = ownership._acquisition._room()
        assert room is not None
        return table.watch(shard).not_before <= self.monotonic() and room.left(shard.queue)

    def unowned(self) -> list[ShardRef]:
        """The shards that it has seen without a lease."""
        watches = self.runtime._ownership._table._watches
        return [shard for shard, watch in watches.items() if watch.since is not None and not watch.seen.epoch]

    def owned(self) -> list[ShardRef]:
        """The shards that it takes for its own."""
        return [one.shard for one in self.runtime._ownership._table.owned()]

    # -- its host

    def stop(self, exitcode: int, reason: str) -> None:
        self.world.violated(f"{self.name} ends by itself: {reason}")

    def alarm(self, lane: str, run: Running, waiting: int | None) -> None:
        self.world.note(f"{self.name}: {run.shard} takes {run.seconds:.2f} s")

    def last_words(self, error: BaseException) -> None:
        self.world.violated(f"{self.name}: {error!r}")
