"""One shard of a queue with policies."""

from __future__ import annotations

from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, Settlement
from celery_lowkiq.rules.policies import Policies
from tests.bound import Queries
from tests.store.helpers import take


def spec(**policies):
    return QueueSpec("orders", shards=1, batch_size=100, policies=Policies(**policies))


class Shard:
    """The only shard of a queue with policies, and its owner."""

    def __init__(self, store, **policies):
        self.store = store
        self.spec = spec(**policies)
        self.queries = Queries(store.client)
        self.lease = take(store, self.spec)
        self.requests = 0

    def push(self, job_id, payload=b"x", score=None, **when):
        self.store.push(self.spec, [Call(job_id, payload, score, **when)])

    def claim(self):
        self.requests += 1
        return self.store.claim(self.spec, self.lease, self.requests).jobs

    def end(self, job, disposition=Disposition.DONE, **settlement):
        self.store.settle(self.spec, self.lease, [Settlement(job.id, job.claim, disposition, **settlement)])

    def run(self, disposition=Disposition.DONE, **settlement):
        jobs = self.claim()
        self.store.settle(
            self.spec, self.lease, [Settlement(j.id, j.claim, disposition, **settlement) for j in jobs]
        )
        return jobs

    def waiting(self, job_id="1"):
        return self.queries.job(self.spec, job_id).waiting

    def payloads(self, job_id="1"):
        return [payload.data for payload in self.waiting(job_id).payloads]

    @property
    def dropped(self):
        return self.queries.stats(self.spec).dropped
