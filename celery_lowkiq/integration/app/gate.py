"""Gate: verifies stored bytes before it decodes them, so that only what callers signed reaches a decoder.

Decoding may run code: of a pickle, or of a class that JSON names. So nothing else calls
``Codec.load_verified`` on what Redis or a dump has; ``tests/unit/test_gate.py`` looks through all files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.links import refused_task
from celery_lowkiq.rules.models import Job, Payload, StoredRecord
from celery_lowkiq.rules.signatures import Fault, binds_score, split_record

from .codec import MARK, Codec, plain_json
from .signing import Signing, Unverified


class Gate:
    """Decodes what is stored of one queue, once ``lowkiq_signing`` lets it pass."""

    def __init__(
        self,
        queue: str,
        codec: Codec,
        record_codec: Codec,
        signing: Signing,
        links: Sequence[str] | None = None,
    ) -> None:
        """``links``: names and patterns of the tasks that records may link; None: all."""
        self.links = links
        self.codec = codec
        self.record_codec = record_codec
        self.signing = signing
        self._queue = queue
        self._fault_of = signing.payload_check(queue)
        self.verifies: bool = self._fault_of is not None

    def load(self, job_id: str, payload: Payload) -> Any:
        """Return the decoded payload of a job. Raises Unverified, UndecodablePayload."""
        if self._fault_of is not None and (fault := self._fault_of(job_id, payload)) is not None:
            raise Unverified(fault.value)
        return self.codec.load_verified(payload.data)

    def is_signed(self, job_id: str, payload: Payload) -> bool:
        """Whether a payload has a signature that verifies."""
        return bool(payload.signature and self._fault_of and self._fault_of(job_id, payload) is None)

    def is_reordered(self, job: Job) -> bool:
        """Whether signed scores descend among the payloads of a job, so that somebody has moved one."""
        if self._fault_of is None or len(job.payloads) < 2:
            return False
        bound = [payload for payload in job.payloads if binds_score(payload.signature)]
        if _ascend(bound):
            return False
        return not _ascend([payload for payload in bound if self._fault_of(job.id, payload) is None])

    def load_record(self, stored: StoredRecord) -> Any:
        """Return the decoded parts of a call record. Raises Unverified, UndecodablePayload."""
        self.signing.check_record(self._queue, stored)
        data = split_record(stored.data)[1]
        return self.record_codec.load_verified(data[max(data.find(MARK), 0) :])

    def check_links(self, linked: Mapping[str, Any]) -> None:
        """Raises Unverified for links that name a task which ``lowkiq_links`` does not allow."""
        if self.links is not None and (task := refused_task(linked, self.links)) is not None:
            raise Unverified(f"lowkiq_links does not allow its link to task {task!r:.200}")

    def is_signed_record(self, stored: StoredRecord) -> bool:
        """Whether a call record has a signature that verifies."""
        try:
            self.signing.check_record(self._queue, stored)
        except Unverified:
            return False
        return bool(split_record(stored.data)[0]) and self.signing.mode != "off"

    def sign_record(self, stored: StoredRecord, record: bytes) -> bytes:
        """Return a record with its signature, at the place of a stored one."""
        return self.signing.signed_record(self._queue, stored, record)

    def load_unsigned(self, data: bytes) -> Any:
        """Return a payload that is kept without a signature, as a tracker's.

        With ``require``, only JSON, without the classes that it names. Raises Unverified, UndecodablePayload.
        """
        if self.signing.mode != "require":
            return self.codec.load_verified(data)
        if data.startswith(MARK):
            raise Unverified(Fault.UNSIGNED.value)
        try:
            return plain_json(data)
        except (ValueError, RecursionError) as error:
            raise UndecodablePayload(f"{type(error).__name__}: {error}") from error

    def check_accepted(self, job_id: str, payload: Payload) -> None:
        """Check that the app accepts the content type of a payload, and decode content other than JSON.

        What is not verified is not decoded. Raises UndecodablePayload.
        """
        self.codec.check_type(payload.data)
        if payload.data.startswith(MARK):
            with suppress(Unverified):
                self.load(job_id, payload)


def _ascend(payloads: Sequence[Payload]) -> bool:
    return all(one.score <= other.score for one, other in pairwise(payloads))
