"""What Celery's ``auth`` serializer leaves open: it signs the body of a payload, and nothing around the body.

Who can write into Redis could otherwise turn the signed body into another value, by another content type, and
two texts could stand for one payload.
"""

from __future__ import annotations

import base64
from typing import Any

from kombu import serialization

_kombu: Any = serialization
#: Celery's name of the serializer.
AUTH = "auth"
#: Between the parts of what it has written; see ``celery.security.serialization``.
SEPARATOR = b"\0\1"


def written_encoding(content_type: str) -> str | None:
    """The encoding that the serializer of a content type writes; None when none is installed that writes."""
    registry = _kombu.registry
    codec = registry._encoders.get(registry.type_to_name.get(content_type))
    return None if codec is None else str(codec.content_encoding)


def is_signed(content_type: str) -> bool:
    """Whether payloads of the content type are those of ``auth``."""
    return bool(_kombu.registry.type_to_name.get(content_type) == AUTH)


def check_envelope(data: bytes) -> None:
    """Raises ValueError when what stands around the signed body is not as ``auth`` writes it."""
    signer, signature, content_type, encoding, _ = _unpacked(data).split(SEPARATOR, 4)
    _unpacked(signer)
    _unpacked(signature)
    if encoding.decode() != written_encoding(content_type.decode()):
        raise ValueError(f"the signed content has the unknown type {content_type!r} in {encoding!r}")


def _unpacked(text: bytes) -> bytes:
    """From base64, of which there is only one form here."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data) != text:
        raise ValueError("its base64 is not as it was written")
    return data
