"""The gate: bytes are verified before they are decoded."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from celery_lowkiq.integration.codec import MARK, Codec, plain_json
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError, UndecodablePayload
from celery_lowkiq.rules.links import refused_task
from celery_lowkiq.rules.models import Job, Payload, StoredRecord
from celery_lowkiq.rules.signatures import MIN_KEY_BYTES, Fault, KeyRing, binds_score, split_record
from celery_lowkiq.store.call_records import DIGEST_BYTES
from celery_lowkiq.store.records import id_bytes

# Signs what calls store and verifies what runs, with the keys of ``lowkiq_signing_keys``.

Mode = Literal["off", "accept", "require"]
#: Fault of a payload of a job; None: none.
PayloadCheck: TypeAlias = Callable[[str, Payload], Fault | None]

SETTING = "lowkiq_signing_keys"
EXPECTED = (
    f"a dict of names to secrets of at least {MIN_KEY_BYTES} bytes, a function that returns one, or the path "
    "of a JSON file with one"
)
#: How often a file is looked at, and a function is called, in s.
FILE_SECONDS = 1.0
FUNCTION_SECONDS = 10.0


class Unverified(UndecodablePayload):
    """The signature of a payload or of a call record does not verify, or the record has a forbidden link."""


class _File:
    """Keys in a JSON file, which is read again when it has changed."""

    interval = FILE_SECONDS

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._found: Any = None

    def __call__(self) -> Any:
        stat = os.stat(self._path)
        seen = stat.st_mtime_ns, stat.st_size, stat.st_ino
        if seen != self._seen:
            with open(self._path, encoding="utf-8") as file:
                self._found, self._seen = json.load(file), seen
        return self._found


class Signing:
    """``lowkiq_signing`` of an app. Messages and reprs show no key, and no name of one."""

    def __init__(self, mode: Mode, keys: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """``keys``: see EXPECTED. Raises ConfigurationError."""
        self.mode: Mode = mode
        self._clock = clock
        self._lock = threading.Lock()
        self._source: Callable[[], Any] | None = None
        self._interval = FUNCTION_SECONDS
        if mode == "off":
            return
        if isinstance(keys, (str, os.PathLike)):
            self._source, self._interval = _File(os.fspath(keys)), FILE_SECONDS
        elif callable(keys):
            self._source = keys
        elif keys is None:
            raise ConfigurationError(
                f"lowkiq_signing={mode!r} is invalid without {SETTING}: expected {EXPECTED}. Set it"
            )
        self._secrets = read_keys(keys if self._source is None else self._first(self._source))
        self._ring = KeyRing(self._secrets)
        self._look_at = clock() + self._interval

    # -- store.jobs.push.Signer

    def sign_payload(self, queue: str, job_id: bytes, payload: bytes, score: float | None) -> bytes:
        return self._keys().sign_payload(queue, job_id, payload, score)

    def sign_record(self, queue: str, job_id: bytes, digest: bytes, record: bytes) -> bytes:
        return self._keys().sign_record(queue, job_id, digest, record)

    # -- what runs

    def payload_check(self, queue: str) -> PayloadCheck | None:
        """The check of the payloads of a queue; None when none is verified."""
        if self.mode == "off":
            return None
        keys, unsigned = self._keys, Fault.UNSIGNED if self.mode == "accept" else None

        def check(job_id: str, payload: Payload) -> Fault | None:
            data, score, signature = payload.data, payload.score, payload.signature
            fault = keys().payload_fault(queue, id_bytes(job_id), data, score, signature)
            if fault is None or fault is unsigned:
                return None
            if self._look_now():
                return keys().payload_fault(queue, id_bytes(job_id), data, score, signature)
            return fault

        return check

    def record_fault(self, queue: str, stored: StoredRecord) -> Fault | None:
        """Return the fault of a stored record; None for the record of this call."""
        if self.mode == "off":
            return None
        job_id, _, rest = stored.key.partition(b"\0")
        checked = queue, job_id, rest[:DIGEST_BYTES], stored.data
        fault = self._keys().record_fault(*checked)
        if fault is None or (fault is Fault.UNSIGNED and self.mode == "accept"):
            return None
        return self._keys().record_fault(*checked) if self._look_now() else fault

    def signed_record(self, queue: str, stored: StoredRecord, record: bytes) -> bytes:
        """The record that replaces a stored one, with its signature."""
        if self.mode == "off":
            return record
        job_id, _, rest = stored.key.partition(b"\0")
        return self.sign_record(queue, job_id, rest[:DIGEST_BYTES], record) + record

    # -- keys

    def _keys(self) -> KeyRing:
        if self._source is not None and self._clock() >= self._look_at:
            self._look(self._source)
        return self._ring

    def _first(self, source: Callable[[], Any]) -> Any:
        try:
            return source()
        except Exception as error:  # noqa: BLE001 - whatever a function raises
            # Its text may show a key, and a traceback would show its values.
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise ConfigurationError(f"{SETTING} cannot be read: {reason}. Expected {EXPECTED}") from None

    def _look_now(self) -> bool:
        """Test whether there are other keys than a moment ago. Looks at most once a second."""
        ring = self._ring
        if self._source is None or self._clock() < self._look_at - self._interval + FILE_SECONDS:
            return False
        self._look(self._source)
        return self._ring is not ring

    def _look(self, source: Callable[[], Any]) -> None:
        """Read the keys again. After an error, the former keys stay in use."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._look_at = self._clock() + self._interval
            secrets = read_keys(source())
            # The order says which key signs.
            if list(secrets.items()) != list(self._secrets.items()):
                self._ring, self._secrets = KeyRing(secrets), secrets
                logger.info("%s has changed: %d keys are in use", SETTING, len(secrets))
        except Exception as error:  # noqa: BLE001 - whatever a function raises, whose text may show a key
            reason = error if isinstance(error, ConfigurationError) else type(error).__name__
            logger.error("%s cannot be read again, those of before stay in use: %s", SETTING, reason)
        finally:
            self._lock.release()


def read_keys(given: Any) -> dict[str, bytes]:
    """The secrets by name. Raises ConfigurationError, which shows neither."""
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"{SETTING} is invalid: expected {EXPECTED}. It has no key")
    found: dict[str, bytes] = {}
    for number, (name, secret) in enumerate(given.items(), 1):
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{SETTING} is invalid: expected {EXPECTED}. Name {number} is no text")
        data = secret.encode() if isinstance(secret, str) else secret
        if not isinstance(data, bytes) or len(data) < MIN_KEY_BYTES:
            wrong = f"has {len(data)} bytes" if isinstance(data, bytes) else f"is a {type(data).__name__}"
            raise ConfigurationError(f"{SETTING} is invalid: expected {EXPECTED}. Secret {number} {wrong}")
        found[name] = data
    return found


def read_setting(value: Any) -> Any:
    """Raises ConfigurationError unless it may have keys; a function or a file is read when an app starts."""
    if isinstance(value, Mapping):
        return read_keys(value)
    if not (callable(value) or (isinstance(value, (str, os.PathLike)) and str(value))):
        raise ConfigurationError(f"{SETTING} is invalid: expected {EXPECTED}. It is a {type(value).__name__}")
    return value


# Gate: verifies stored bytes before it decodes them, so that only what callers signed reaches a decoder.
#
# Decoding may run code: of a pickle, or of a class that JSON names. So nothing else calls
# ``Codec.load_verified`` on what Redis or a dump has; ``tests/unit/test_gate.py`` looks through all files.


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
        """Test whether a payload has a signature that verifies."""
        return bool(payload.signature and self._fault_of and self._fault_of(job_id, payload) is None)

    def is_reordered(self, job: Job) -> bool:
        """Test whether signed scores descend among the payloads of a job, so that somebody has moved one."""
        if self._fault_of is None or len(job.payloads) < 2:
            return False
        bound = [payload for payload in job.payloads if binds_score(payload.signature)]
        if _ascend(bound):
            return False
        return not _ascend([payload for payload in bound if self._fault_of(job.id, payload) is None])

    def load_record(self, stored: StoredRecord) -> Any:
        """Return the decoded parts of a call record. Raises Unverified, UndecodablePayload."""
        if fault := self.signing.record_fault(self._queue, stored):
            raise Unverified(fault.value)
        data = split_record(stored.data)[1]
        return self.record_codec.load_verified(data[max(data.find(MARK), 0) :])

    def check_links(self, linked: Mapping[str, Any]) -> None:
        """Raises Unverified for links that name a task which ``lowkiq_links`` does not allow."""
        if self.links is not None and (task := refused_task(linked, self.links)) is not None:
            raise Unverified(f"lowkiq_links does not allow its link to task {task!r:.200}")

    def is_signed_record(self, stored: StoredRecord) -> bool:
        """Test whether a call record has a signature that verifies."""
        signed = self.signing.mode != "off" and bool(split_record(stored.data)[0])
        return signed and self.signing.record_fault(self._queue, stored) is None

    def sign_record(self, stored: StoredRecord, record: bytes) -> bytes:
        """Return a record with its signature, at the place of a stored one."""
        return self.signing.signed_record(self._queue, stored, record)

    def load_unsigned(self, data: bytes) -> Any:
        """Return a payload that is kept without a signature, such as a tracker's.

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
