"""Payloads as bytes, and back.

Payloads are equal when their bytes are, so JSON is written in one way only: sorted keys, no spaces, no NaN.
JSON payloads are stored as they are; others begin with MARK, content type and encoding, so that a reader
decodes what was written, and only if the app accepts it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NoReturn

from kombu import serialization
from kombu.exceptions import KombuError
from kombu.utils.json import JSONEncoder, object_hook

from celery_lowkiq.rules.errors import ConfigurationError, PayloadError, UndecodablePayload

#: No JSON text begins with this byte.
MARK = b"\x01"
JSON = "json"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_encoder: json.JSONEncoder = JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_decoder = json.JSONDecoder(object_hook=object_hook, parse_constant=_refuse_constant)


class Codec:
    """Turns payloads into bytes by one serializer, and reads what any accepted one wrote."""

    def __init__(self, serializer: str, accept: Collection[str], max_bytes: int) -> None:
        """``accept``: content types or serializer names, as Celery's ``accept_content``.

        Raises ConfigurationError when the serializer is unknown, not installed, or not accepted.
        """
        self._serializer = serializer
        self._accept = serialization.prepare_accept_content(accept)
        self._max_bytes = max_bytes
        if serializer != JSON:
            self._check_serializer()

    def dump(self, payload: Any) -> bytes:
        """Raises PayloadError when the payload cannot be serialized, or is too large."""
        try:
            data = _dump_json(payload) if self._serializer == JSON else self._dump_other(payload)
        except (TypeError, ValueError, RecursionError, KombuError) as error:
            raise PayloadError(
                f"the payload cannot be serialized as {self._serializer}: {error}; "
                "allowed is what the serializer takes (for JSON: no NaN, no keys of mixed types)"
            ) from error
        if len(data) > self._max_bytes:
            raise PayloadError(
                f"the payload has {len(data)} bytes, allowed are {self._max_bytes}: send a reference to "
                "large data, or raise lowkiq_max_payload_bytes (at most 1 MiB)"
            )
        return data

    def load(self, data: bytes) -> Any:
        """Raises UndecodablePayload with the reason."""
        try:
            if data.startswith(MARK):
                return self._load_other(data)
            return _decoder.decode(data.decode("utf-8"))
        except UndecodablePayload:
            raise
        except Exception as error:
            raise UndecodablePayload(f"{type(error).__name__}: {error}") from error

    def _check_serializer(self) -> None:
        """Every payload would end in the morgue if the worker could not read what calls write."""
        try:
            self._load_other(self._dump_other(""))
        except Exception as error:
            raise ConfigurationError(
                f"lowkiq_serializer: {self._serializer!r} is not allowed ({error}); allowed: 'json', or the "
                "name of a kombu serializer that is installed and listed in accept_content"
            ) from error

    def _dump_other(self, payload: Any) -> bytes:
        content_type, encoding, body = serialization.dumps(payload, serializer=self._serializer)
        raw = body.encode(encoding) if isinstance(body, str) else body
        return b"\0".join((MARK + content_type.encode(), encoding.encode(), raw))

    def _load_other(self, data: bytes) -> Any:
        content_type, encoding, body = data[len(MARK) :].split(b"\0", 2)
        if self._accept is not None and content_type.decode() not in self._accept:
            raise UndecodablePayload(f"content type {content_type.decode()!r} is not in accept_content")
        return serialization.loads(body, content_type.decode(), encoding.decode(), accept=self._accept)


def _dump_json(payload: Any) -> bytes:
    return _encoder.encode(payload).encode("utf-8")
