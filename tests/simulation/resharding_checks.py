"""What must hold in a run of migrations: when a job begins, and when all has come to rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from celery_lowkiq.rules.models import Job, Layout, Recorded
from celery_lowkiq.store.keys import SHARD_KEYS
from celery_lowkiq.store.records import parse_items


class Violation(AssertionError):
    """What must hold did not."""


#: What a failover of a replica that was cut off may bring back, and does no harm where it is.
HARMLESS = ("outbox", "done_scores")


class RunChecks:
    """Checks each job that a worker of a simulation begins."""

    def begins(self, me: str, job: Job, index: int) -> None:
        if self.cut_off:
            return
        other, _ = self.running.get(job.id, (me, index))
        if other != me and other in {actor.name for actor in self.actors}:
            raise Violation(f"{job.id} runs twice")
        self.running[job.id] = me, index
        self.check_alone(job.id, index)
        self.check_gate(job.id)
        scores = [payload.score for payload in job.payloads]
        if scores != sorted(scores):
            raise Violation(f"{job.id}: {scores} do not ascend")
        calls = Counter(record.payload for record in job.calls.records) if job.calls else Counter()
        for position, payload in enumerate(job.payloads):
            self.scores[payload.data] = payload.score
            if job.retry_count < self.retries[job.id].get(payload.data, -1):
                raise Violation(f"{payload.data!r} has failed, and is not known to have")
            recorded = payload.recorded is Recorded.ALL and payload.data not in self.ending
            if recorded and not calls[position]:
                raise Violation(f"{payload.data!r} has lost its call record")

    def check_alone(self, job_id: str, index: int) -> None:
        """No other shard runs the id, or could begin to."""
        for other in set(range(self.highest)) - {index}:
            for name in ("claimed", "due", "due_prioritized"):
                if self.redis.zscore(self.keys(other)[name], job_id) is not None:
                    raise Violation(f"{job_id} runs in shard {index}, and is {name} in shard {other}")


class FinalChecks:
    """Compares what is stored with what the actors of a simulation know."""

    def check(self) -> None:
        layout = Layout(self.wanted)
        dead: Counter[bytes] = Counter()
        for index in range(self.highest):
            dead.update(self.dead_of(index))
            for name, type_ in SHARD_KEYS.items():
                if name in ("lease", "meta", "senders") or (self.cut_off and name in HARMLESS):
                    continue
                key = self.keys(index)[name]
                found = self.redis.zrange(key, 0, -1) if type_ == "zset" else self.redis.hkeys(key)
                for member in found:
                    job_id = member.partition(b"\0")[0].decode()
                    if name in ("inflight", "arrived", "outbox", "moving") or layout.home(job_id) != index:
                        raise Violation(f"{name} of {job_id} is left in shard {index} of {self.wanted}")
        if self.cut_off:
            return
        for payload in self.acked:
            if not self.done[payload] and not dead[payload] and not self.may_be_lost(payload):
                raise Violation(f"{payload!r} is lost")
        for payload, steps in self.done.items():
            if len(steps) - self.lost_settles(payload) + dead[payload] > 1:
                raise Violation(f"{payload!r} is doubled: {steps}, dead {dead[payload]}")
        self.check_order()
        self.check_done_scores(layout)
        self.check_counts()

    def dead_of(self, index: int) -> Iterator[bytes]:
        """Payloads in the morgue: all of one id, from its packed record or its spilled set."""
        keys = self.keys(index)
        yield from (m.rpartition(b"\0")[2] for m in self.redis.zrange(keys["dead_spill_order"], 0, -1))
        for record in self.redis.hvals(keys["dead_jobs"]):
            if record != b"S":
                yield from (payload.data for payload in parse_items(record))

    def check_order(self) -> None:
        by_id: dict[bytes, list[bytes]] = defaultdict(list)
        for payload in self.acked:
            if self.may_be_lost(payload) or self.lost_settles(payload):
                continue
            by_id[payload.partition(b"#")[0]].append(payload)
        for payloads in by_id.values():
            for one in payloads:
                for other in payloads:
                    if self.acked[one] < self.sent[other]:
                        self.totals.pairs += 1
                        self.check_pair(one, other)

    def check_pair(self, one: bytes, other: bytes) -> None:
        if self.scores[one] >= self.scores[other]:
            raise Violation(f"scores of {one!r} and {other!r}: {self.scores[one]} {self.scores[other]}")
        if not {one, other} & self.let_go and self.ended(one, 0) > self.ended(other, 10**9):
            raise Violation(f"{one!r} is done after {other!r}")

    def ended(self, payload: bytes, default: int) -> int:
        return (self.done[payload] or [self.died.get(payload, default)])[0]

    def check_done_scores(self, layout: Layout) -> None:
        """A payload that is sent again later must be found stale."""
        if self.queue.policies.drop_stale is None:
            return
        for job_id in self.ids:
            mark = job_id.encode() + b"#"
            ended = [p for p, steps in self.done.items() if len(steps) > self.lost_settles(p)]
            done = [self.scores[p] for p in ended if p.startswith(mark)]
            stored = self.redis.hget(self.keys(layout.home(job_id))["done_scores"], job_id) or b"0"
            if max(done, default=0.0) > float(stored.split()[0]):
                raise Violation(f"done_scores of {job_id}: {stored!r}, but {max(done)} is done")

    def check_counts(self) -> None:
        metas = [self.redis.hget(self.keys(n)["meta"], "dead") or 0 for n in range(self.highest)]
        if sum(map(int, metas)) != self.deaths:
            raise Violation(f"counted {metas} dead payloads, not {self.deaths}")
