"""The part of ``task.ordered_queue`` for ids that a dead payload holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_lowkiq.integration.app.codec import Codec
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.views import HeldId, ShardsPage
from celery_lowkiq.store.admin.actions import UNSIGNED, Actions, Progress, Signed

from .signing_mixin import SigningMixin


class HoldsMixin(SigningMixin):
    """Ids that a dead payload holds. Methods raise StoreError."""

    _raw: bool

    def held_ids(self, limit: int = 100, after: str | None = None) -> ShardsPage[HeldId]:
        """Return a page of the ids that a dead payload holds, the longest held first. Raises InvalidCall."""
        (queue,) = self._context.registry.as_stored([self.spec])
        return self._context.queries.held_ids(queue, limit=limit, after=after)

    def hold(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Let dead payloads hold their ids: newer ones wait until somebody has decided about the dead ones.

        Return how many ids have dead payloads and were not held. Raises InvalidCall, also for a queue that
        drops payloads, by ``keep=``, ``latest=`` or ``drop_stale=``.
        """
        if not self.spec.policies.may_hold:
            raise InvalidCall(
                f"queue {self.spec.name!r} drops payloads, by keep=, latest= or drop_stale=, so that newer "
                "ones run over a gap anyway: pause the ids instead"
            )
        return self._context.pausing.hold(self._at_rest(), map(read_id, ids), progress)

    def go_on(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Let held ids go on over the gap: their dead payloads stay in the morgue.

        Return how many were held. Raises InvalidCall.
        """
        return self._context.pausing.go_on(self._at_rest(), map(read_id, ids), progress)

    def delete_dead_payload(self, job_id: Any, payload: Any) -> bool:
        """Delete one payload of a dead job. Return whether the job had it.

        An id that it held goes on when no other payload of it is dead. On a :meth:`raw` queue, ``payload`` is
        the stored bytes. Raises InvalidCall.
        """
        return self._edit_dead(read_id(job_id), payload, None)

    def edit_dead_payload(self, job_id: Any, payload: Any, value: Any) -> bool:
        """Replace one payload of a dead job by ``value``, with the same score. Return whether it changed.

        Requeue the job to run it. Raises as :meth:`edit_payload`.
        """
        name = read_id(job_id)
        self._form.check_edit(name, value)
        new = self._codec.dump(value)
        signature = self._edit_signature(name, self._bytes_of(payload), new, dead=True)
        return self._bytes_of(payload) != new and self._edit_dead(name, payload, new, signature)

    def _bytes_of(self, payload: Any) -> bytes:
        return bytes(payload) if self._raw else self._codec.dump(payload)

    @property
    def _codec(self) -> Codec:
        return self._context.codec_for(self._form.merges)

    def _edit_dead(self, job_id: str, payload: Any, other: bytes | None, signed: Signed = UNSIGNED) -> bool:
        old = self._bytes_of(payload)
        return Actions(self._context.store).edit_dead(self._at_rest(), job_id, old, other, signed)
