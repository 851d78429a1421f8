"""The part of ``task.ordered_queue`` that signs what operators change or vouch for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

from celery import Celery

from celery_lowkiq.integration.app.context import AppContext, context_of
from celery_lowkiq.integration.app.gate import Gate
from celery_lowkiq.integration.calls.call_form import CallForm
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.rules.errors import InvalidCall, UndecodablePayload
from celery_lowkiq.rules.models import Job, Payload, QueueSpec, ShardRef
from celery_lowkiq.rules.signatures import split_record
from celery_lowkiq.store.admin.actions import UNSIGNED, Actions, Progress, Signed
from celery_lowkiq.store.jobs.call_records import digest, records_of
from celery_lowkiq.store.scripts.progress import ShardTally
from celery_lowkiq.store.scripts.records import id_bytes

#: Payloads of a job that are signed, or searched for one with a signed score: those with the smallest scores.
SEARCHED = 1000
#: Calls of a job that are made due.
CALLS = 100


class SigningMixin:
    """Signs edited payloads, and dead ones that an operator vouches for. Methods raise StoreError."""

    _app: Celery
    _form: CallForm
    spec: QueueSpec

    @property
    def _context(self) -> AppContext:
        return context_of(self._app)

    def _at_rest(self) -> QueueSpec:
        return self._context.registry.at_rest(self.spec)

    @property
    def is_signed(self) -> bool:
        """Whether the app signs what it stores."""
        return self._context.signing.mode != "off"

    def sign_dead(self, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Sign the dead payloads of ids as they are, so that they run once they are requeued.

        Look at them first: this vouches for them, whoever wrote them. Of an id with more than 1,000 dead
        payloads, those with the smallest scores are signed. Return how many jobs have any. Raises
        InvalidCall, also for an app that does not sign.
        """
        if not self.is_signed:
            raise InvalidCall("there is no key to sign with: set lowkiq_signing and lowkiq_signing_keys")
        store, queries = self._context.store, self._context.queries
        queue, actions = self._at_rest(), Actions(store)
        tally = ShardTally(store.client, progress)
        for job_id in map(read_id, ids):
            tally.begin()
            with tally.of(queue.shard_of(job_id)):
                dead = queries.job(queue, job_id, SEARCHED).dead
                signed = [
                    actions.edit_dead(
                        queue, job_id, one.data, one.data, self._signature(job_id, one.data, one.score)
                    )
                    for one in (dead.payloads if dead else ())
                ]
                tally.add(int(any(signed)))
        return tally.total()

    def _edit_signature(self, job_id: str, old: bytes, new: bytes, *, dead: bool) -> Signed:
        """The signature of a payload that replaces another one."""
        if not self.is_signed:
            return UNSIGNED
        found = self._context.queries.job(self._at_rest(), job_id, SEARCHED)
        job = found.dead if dead else found.waiting
        for payload in job.payloads if job else ():
            if payload.data == old and self._gate.is_signed(job_id, payload):
                return self._signature(job_id, new, payload.score)
        # The operator vouches for the new payload, not for a score that anybody may have written.
        return self._signature(job_id, new, None)

    def _signature(self, job_id: str, new: bytes, score: float | None) -> Signed:
        """The signature of a payload, which binds ``score`` if that of the payload before it bound it."""
        signing, name, of = self._context.signing, self.spec.name, id_bytes(job_id)
        texts = signing.sign_payload(name, of, new, None) + signing.sign_payload(name, of, new, score)
        return Signed(texts, score or 0.0)

    # -- calls with a time of their own

    def _make_calls_of_id_due(self, queue: QueueSpec, job_id: str) -> None:
        waiting = self._context.queries.job(queue, job_id, CALLS).waiting
        if waiting is not None:
            self._make_calls_due(queue, waiting)

    def _make_calls_of_shard_due(self, queue: QueueSpec, shard: ShardRef) -> None:
        for job in self._context.queries.waiting_of(shard, CALLS):
            self._make_calls_due(queue, job)

    def _make_calls_due(self, queue: QueueSpec, job: Job) -> None:
        context, now = self._context, time.time()
        for payload in job.payloads:
            with suppress(UndecodablePayload):
                due = self._form.made_due(self._gate.load(job.id, payload), now)
                if due is not None:
                    new = context.codec_for(self._form.merges).dump(due)
                    signature = self._renewed(queue, job.id, payload, new)
                    Actions(context.store).edit(queue, job.id, payload.data, new, signature, keep_calls=True)

    def _renewed(self, queue: QueueSpec, job_id: str, old: Payload, new: bytes) -> Signed:
        """The signature of a payload that is changed unseen: none unless that of the old one verifies."""
        if not self._gate.is_signed(job_id, old):
            return UNSIGNED
        context, of = self._context, digest(new)
        records: list[bytes] = []
        for stored in records_of(context.store.client, queue.shard_of(job_id), job_id, old.data):
            if self._gate.is_signed_record(stored):
                record = split_record(stored.data)[1]
                signature = context.signing.sign_record(queue.name, id_bytes(job_id), of, record)
                records += (stored.data, signature + record)
        return self._signature(job_id, new, old.score)._replace(records=records)

    @property
    def _gate(self) -> Gate:
        return self._context.gate(self.spec.name)
