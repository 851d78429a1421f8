"""Signatures of payloads and call records: who has no key can make none that verifies.

A signature is 24 characters of base64 without a space: 2 bytes of kind and key, and 16 bytes of HMAC-SHA-256
over format, kind, queue, id, and what the kind adds. It begins with the letter of its kind, so it needs no
separator behind a number or a flag, nor before a record, which begins with ``[``. Ten bits of a digest of the
key say which key to try.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache, partial
from hmac import compare_digest
from typing import Any, NamedTuple, TypeAlias

SIGNATURE_CHARS = 24
MAC_BYTES = 16
#: Shorter secrets can be found by trying.
MIN_KEY_BYTES = 16
#: First part of what is signed; changes with it.
FORMAT = b"lowkiq1"
#: Ten bits.
HINT = 0x3FF
#: Queues whose beginnings of HMACs a key keeps.
QUEUES = 4096

Make: TypeAlias = Callable[[bytes], bytes]

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BLOCK_BYTES = 64
_IPAD, _OPAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


#: Signed parts, by the first letter of the signature: a payload whose score Redis makes, a payload with its
#: score, and the record of a call with the digest of its payload.
PAYLOAD, SCORED, RECORD = b"s", b"S", b"c"


class Fault(str, Enum):
    """Why something is not verified."""

    UNSIGNED = "it is not signed"
    MALFORMED = "its signature is malformed"
    UNKNOWN_KEY = "the key of its signature is not in lowkiq_signing_keys"
    WRONG = "it is not what was signed: its queue, id, score or bytes were changed"
    REORDERED = "signed scores of its job descend: their order was changed"


class _Key(NamedTuple):
    """HMAC's two hashes after the key, and the ten bits that name it."""

    inner: Any
    outer: Any
    hint: int


def _key(secret: bytes) -> _Key:
    padded = (hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret).ljust(
        _BLOCK_BYTES, b"\0"
    )
    hint = hashlib.sha256(b"lowkiq key\0" + secret).digest()
    return _Key(
        hashlib.sha256(padded.translate(_IPAD)),
        hashlib.sha256(padded.translate(_OPAD)),
        int.from_bytes(hint[:2], "big") & HINT,
    )


def _maker(key: _Key, kind: bytes, queue: str) -> Make:
    """Make the signatures of one kind in one queue with one key."""
    begun = key.inner.copy()
    begun.update(b"\0".join((FORMAT, kind, queue.encode(), b"")))
    begin, end = begun.copy, key.outer.copy
    head = (_BASE64.index(kind) << 10 | key.hint).to_bytes(2, "big")

    def make(signed: bytes) -> bytes:
        inner, outer = begin(), end()
        inner.update(signed)
        outer.update(inner.digest())
        return binascii.b2a_base64(head + outer.digest()[:MAC_BYTES], newline=False)

    return make


class KeyRing:
    """Keys: the first signs, all verify. No method shows one."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._keys = [_key(secret) for secret in secrets.values()]
        # On the instance: a cache of the class would keep keys that were removed.
        self._signers = lru_cache(QUEUES)(partial(_maker, self._keys[0]))
        self._verifiers = lru_cache(QUEUES)(self._makers)

    def sign_payload(self, queue: str, job_id: bytes, payload: bytes, score: float | None = None) -> bytes:
        """The signature of a payload, which binds the score unless Redis makes that."""
        if score is None:
            return self._signers(PAYLOAD, queue)(job_id + b"\0" + payload)
        return self._signers(SCORED, queue)(_scored(job_id, payload, score))

    def sign_record(self, queue: str, job_id: bytes, digest: bytes, record: bytes) -> bytes:
        return self._signers(RECORD, queue)(job_id + b"\0" + digest + record)

    def payload_fault(
        self, queue: str, job_id: bytes, payload: bytes, score: float, signature: bytes
    ) -> Fault | None:
        """Fault of a payload's signature; None when it verifies."""
        kind = signature[:1]
        if b"\0" in job_id:
            # No id has one: in what is signed, it ends the id.
            return Fault.WRONG
        if kind == PAYLOAD:
            return self._fault(PAYLOAD, queue, job_id + b"\0" + payload, signature)
        if kind == SCORED:
            return self._fault(SCORED, queue, _scored(job_id, payload, score), signature)
        return Fault.MALFORMED if signature else Fault.UNSIGNED

    def record_fault(self, queue: str, job_id: bytes, digest: bytes, data: bytes) -> Fault | None:
        """Fault of a record, which follows its signature; None when it verifies."""
        signature, record = split_record(data)
        if not signature:
            return Fault.UNSIGNED
        return self._fault(RECORD, queue, job_id + b"\0" + digest + record, signature)

    def _fault(self, kind: bytes, queue: str, signed: bytes, signature: bytes) -> Fault | None:
        if len(signature) != SIGNATURE_CHARS:
            return Fault.MALFORMED
        makers = self._verifiers(kind, queue, signature[:3])
        for make in makers:
            if compare_digest(make(signed), signature):
                return None
        return Fault.WRONG if makers else Fault.UNKNOWN_KEY

    def _makers(self, kind: bytes, queue: str, beginning: bytes) -> list[Make]:
        # Three of its characters have the two bytes of kind and key, and two bits more.
        try:
            (number,) = struct.unpack(">H", binascii.a2b_base64(beginning + b"A")[:2])
        except (ValueError, struct.error):
            return []
        return [_maker(key, kind, queue) for key in self._keys if key.hint == number & HINT]


def _scored(job_id: bytes, payload: bytes, score: float) -> bytes:
    return b"%b\0%b\0%b" % (job_id, repr(float(score) + 0.0).encode(), payload)


def binds_score(signature: bytes) -> bool:
    """True if a signature binds the score of its payload."""
    return signature[:1] == SCORED


def split_record(data: bytes) -> tuple[bytes, bytes]:
    """A stored record as its signature, empty if there is none, and the record."""
    if data[:1] == RECORD:
        return data[:SIGNATURE_CHARS], data[SIGNATURE_CHARS:]
    return b"", data
