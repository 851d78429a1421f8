"""Operators in simulated migrations, and the gate that nothing of a held id runs."""

from __future__ import annotations

from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.store.keys import queue_key
from celery_lowkiq.store.script import load
from tests.simulation.resharding_checks import Violation

#: Share of the runs with ``when_dead="hold"``, which excludes policies that drop payloads.
HOLDING = 0.4
#: What acts in these runs beside the actors of each run.
HOLDERS = (("worker", 3), ("decider", 2))


class Operators:
    """``held`` has the dead payloads that hold an id."""

    def operator(self) -> None:
        """Pauses migrations, resumes and aborts them; a paused one is resumed at the end."""
        while self.faults:
            self.pause_actor()
            if self.perhaps(0.2):
                self.pause(self.chance.choice([True, False]))
            if self.perhaps(self.aborts):
                self.abort()
        self.pause(False)

    def abort(self) -> None:
        """Movers begin the migration again when it was taken back."""
        before = self.redis.hmget(queue_key(self.queue.name), "phase", "migration_aborted")
        self.one(load("abort_migration").call({"queue": queue_key(self.queue.name)}))
        self.totals.aborts += before == [b"move", None]

    def pause(self, wanted: bool) -> None:
        call = load("pause_migration").call({"queue": queue_key(self.queue.name)}, wanted=int(wanted))
        changed = self.one(call)
        self.totals.pauses += wanted and changed == 1

    # -- ids that a death holds

    def dies(self, job_id: str, payload: bytes) -> None:
        self.deaths += 1
        self.died[payload] = self.step
        if self.holds:
            self.totals.holds += not self.held[job_id]
            self.held[job_id].add(payload)

    def check_gate(self, job_id: str) -> None:
        if self.held[job_id]:
            raise Violation(f"{job_id} runs, and is held by {self.held[job_id]}")

    def decider(self) -> None:
        """Requeues held ids, or lets them go on; at the end requeues all, so that they come to rest."""
        while True:
            self.pause_actor()
            layout = self.route()
            if layout.former is not None and not self.perhaps(0.3):
                continue  # Refused while a queue is being moved, unless its route was read before.
            index = self.chance.randrange(layout.count)
            name = "paused" if self.faults else "dead_ids"
            (found,) = self.client.commands([("ZRANGE", self.keys(index)[name], 0, -1)])
            if found:
                job_id = self.chance.choice(found).decode()
                self.go_on(index, job_id) if self.perhaps(0.3) else self.requeue(index, job_id)

    def requeue(self, index: int, job_id: str) -> None:
        """In steps of few payloads; the shard may be moved between them, and the last ones may not come."""
        bounds = {"merge": self.queue.merge.value, "policy": self.queue.policy, "force": 0, "maximum": "+inf"}
        where = {"channel": "c", "index": index, "limit": self.chance.choice([1, 2, 100]), "max_bytes": 10**6}
        call = load("requeue").call(self.keys(index), [job_id], **bounds, **where)
        dealt = 0
        while not dealt and not self.perhaps(0.1):
            self.pause_actor()
            before = set(self.dead_of(index))
            reply = self.one(call)
            if isinstance(reply, LowkiqError):
                return
            dealt = reply[0]
            # Others may have died since, before this command was sent.
            back = (before | self.held[job_id] if dealt else before).difference(self.dead_of(index))
            self.totals.requeued += len(back)
            self.held[job_id] -= back
            self.retries[job_id] = {}

    def go_on(self, index: int, job_id: str) -> None:
        call = load("hold_ids").call(self.keys(index), [job_id], wanted=0, channel="c", index=index)
        if self.one(call):
            self.totals.gone_on += 1
            self.let_go |= self.held.pop(job_id, set())
