"""Payloads as bytes, and back.

Payloads are equal when their bytes are, so JSON is written in one way only: sorted keys, no spaces, no NaN.
JSON payloads are stored as they are; others begin with MARK, content type and encoding, so that a reader
decodes what was written, and only if the app accepts it. What is stored as it is counts as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from kombu import serialization
from kombu.exceptions import KombuError
from kombu.utils.json import JSONEncoder, object_hook

from celery_lowkiq.rules.errors import ConfigurationError, PayloadError, UndecodablePayload

from .signed_payloads import check_envelope, is_signed, written_encoding

#: No JSON text has this byte.
MARK = b"\x01"
JSON = "json"
JSON_TYPE = "application/json"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_encoder: json.JSONEncoder = JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_decoder = json.JSONDecoder(object_hook=object_hook, parse_constant=_refuse_constant)


class Codec:
    """Turns payloads into bytes by one serializer, and reads what any accepted one wrote."""

    def __init__(self, serializer: str, accept: Collection[str] | None, max_bytes: int) -> None:
        """``accept``: content types or serializer names, as Celery's ``accept_content``; None accepts what
        kombu does.

        Raises ConfigurationError when the serializer is unknown, not installed, or not accepted.
        """
        self._serializer = serializer
        self._accept = _content_types(accept)
        self._max_bytes = max_bytes
        # Decided here, once, and not for each payload.
        self._load_plain: Callable[[bytes], Any] = _load_json if self._accepts(JSON_TYPE) else _refuse_json
        self._check_serializer()

    def dump(self, payload: Any) -> bytes:
        """Raises PayloadError when the payload cannot be serialized, or is too large."""
        try:
            data = dump_json(payload) if self._serializer == JSON else self._dump_other(payload)
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
        if len(data) > self._max_bytes:
            raise UndecodablePayload(f"it is larger than lowkiq_max_payload_bytes={self._max_bytes}")
        try:
            return self._load_other(data) if data.startswith(MARK) else self._load_plain(data)
        except UndecodablePayload:
            raise
        except Exception as error:
            raise UndecodablePayload(f"{type(error).__name__}: {error}") from error

    def check_accepted(self, data: bytes) -> None:
        """Raises UndecodablePayload when the app does not accept the content type, or the serializer of that
        type cannot read what it did not write. JSON is not read here.
        """
        if data.startswith(MARK):
            self.load(data)
        elif self._load_plain is _refuse_json:
            _refuse_json(data)

    def _accepts(self, content_type: str) -> bool:
        return self._accept is None or content_type in self._accept

    def _check_serializer(self) -> None:
        """Every payload would end in the morgue if the worker could not read what calls write."""
        try:
            if self._serializer == JSON:
                self._load_plain(b"0")
            else:
                self._load_other(self._dump_other(""))
        except Exception as error:
            raise ConfigurationError(
                f"lowkiq_serializer={self._serializer!r} is invalid: expected a kombu serializer that is "
                f"installed and listed in accept_content ({error}). Set lowkiq_serializer to one of "
                "accept_content, or add it there"
            ) from error

    def _dump_other(self, payload: Any) -> bytes:
        content_type, encoding, body = serialization.dumps(payload, serializer=self._serializer)
        raw = body.encode(encoding) if isinstance(body, str) else body
        return b"\0".join((MARK + content_type.encode(), encoding.encode(), raw))

    def _load_other(self, data: bytes) -> Any:
        content_type, encoding, body = data[len(MARK) :].split(b"\0", 2)
        name = content_type.decode()
        if not self._accepts(name):
            raise _not_accepted(name)
        # kombu does not ask the serializer about these: nothing, and an encoding that it does not use.
        if (written := written_encoding(name)) is not None and not (body and written == encoding.decode()):
            raise UndecodablePayload(f"it is not as the serializer of {name!r} writes it")
        if is_signed(name):
            check_envelope(body)
        return serialization.loads(body, name, encoding.decode(), accept=self._accept)


def _content_types(accept: Collection[str] | None) -> Collection[str] | None:
    try:
        found: Collection[str] | None = serialization.prepare_accept_content(accept)
    except KombuError as error:
        raise ConfigurationError(
            f"accept_content={accept!r} is invalid: expected serializers that are installed ({error}). "
            "Install what is missing; for 'auth', call app.setup_security() before the first call"
        ) from error
    return found


def _not_accepted(content_type: str) -> UndecodablePayload:
    return UndecodablePayload(f"content type {content_type!r} is not in accept_content")


def _load_json(data: bytes) -> Any:
    return _decoder.decode(data.decode("utf-8"))


def _refuse_json(_: bytes) -> NoReturn:
    raise _not_accepted(JSON_TYPE)


def dump_json(payload: Any) -> bytes:
    """The one way in which JSON is written."""
    return _encoder.encode(payload).encode("utf-8")
