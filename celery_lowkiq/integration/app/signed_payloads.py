"""Envelope checks for Celery's ``auth`` serializer, which signs only the body of a payload.

Without them, an attacker who can write to Redis could change the content type of a signed body, and thereby
its value; and two texts could encode the same payload.
"""

from __future__ import annotations

import base64
from typing import Any

from kombu import serialization

_kombu: Any = serialization
#: Celery's name of the serializer.
AUTH = "auth"
#: Separates the parts of its output; see ``celery.security.serialization``.
SEPARATOR = b"\0\1"


def written_encoding(content_type: str) -> str | None:
    """Return the encoding that the serializer of a content type writes; None without an installed encoder."""
    registry = _kombu.registry
    codec = registry._encoders.get(registry.type_to_name.get(content_type))
    return None if codec is None else str(codec.content_encoding)


def is_signed(content_type: str) -> bool:
    """Whether the content type is that of ``auth``."""
    return bool(_kombu.registry.type_to_name.get(content_type) == AUTH)


def check_envelope(data: bytes) -> None:
    """Raise ValueError when the parts around the signed body differ from what ``auth`` writes."""
    signer, signature, content_type, encoding, _ = _unpacked(data).split(SEPARATOR, 4)
    _unpacked(signer)
    _unpacked(signature)
    if encoding.decode() != written_encoding(content_type.decode()):
        raise ValueError(f"the signed content has the unknown type {content_type!r} in {encoding!r}")


def _unpacked(text: bytes) -> bytes:
    """Decode base64. Raises ValueError for any form but the canonical one."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data) != text:
        raise ValueError("its base64 is not canonical")
    return data
