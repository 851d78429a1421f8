"""Payload codec: serializes payloads to bytes and decodes them.

Payloads that merge are compared by their bytes, so their JSON has one canonical form: sorted keys, no spaces,
no NaN. The calls of a task with ``by=`` do not merge, and keep the order of their keys.
JSON is stored without a prefix. Other content begins with MARK, content type and encoding, so that a reader
decodes it by its own type, and only if the app accepts that type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection
from json import scanner
from typing import Any, NoReturn

from kombu import serialization
from kombu.exceptions import KombuError
from kombu.utils.json import JSONEncoder, object_hook

from celery_lowkiq.rules.errors import ConfigurationError, PayloadError, UndecodablePayload

#: First byte of content other than JSON; no JSON text contains it.
MARK = b"\x01"
JSON = "json"
JSON_TYPE = "application/json"
#: Celery's serializer that signs the body of a payload, and only that.
AUTH = "auth"
#: Separates the parts of its output; see ``celery.security.serialization``.
SEPARATOR = b"\0\1"

#: The registry has no types.
_kombu: Any = serialization
_registry = _kombu.registry


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities: the ``parse_constant`` of strict JSON."""
    raise ValueError(f"{name} is not JSON")


def plain_json(data: bytes | str) -> Any:
    """Return the value of JSON that anybody may have written: kombu's tagged values stay mappings.

    Raises ValueError, RecursionError.
    """
    return json.loads(data, parse_constant=refuse_constant)


_encoder: json.JSONEncoder = JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_decoder = json.JSONDecoder(object_hook=object_hook, parse_constant=refuse_constant)
#: Reads a value from a position on, without the hook for kombu's tagged values, and returns where it ends.
_scan = scanner.make_scanner(json.JSONDecoder(parse_constant=refuse_constant))  # type: ignore[arg-type]


class Codec:
    """Serializes payloads by one serializer, and decodes payloads of every accepted serializer."""

    def __init__(
        self, serializer: str, accept: Collection[str] | None, max_bytes: int, in_order: bool = False
    ) -> None:
        """``accept``: content types or serializers, like Celery's ``accept_content``; None: kombu's default.
        ``in_order``: the keys of JSON objects keep their order.

        Raises ConfigurationError when the serializer is unknown, not installed, or not accepted.
        """
        self._serializer = serializer
        self._accept = _content_types(accept)
        self._max_bytes = max_bytes
        # Decided once, not for each payload.
        self._load_plain: Callable[[bytes], Any] = _load_json if self._accepts(JSON_TYPE) else _refuse_json
        dump = _dump_in_order if in_order else dump_json
        self._dump_plain: Callable[[Any], bytes] = dump if serializer == JSON else self._dump_other
        self._check_serializer()

    def dump(self, payload: Any) -> bytes:
        """Serialize a payload. Raises PayloadError when that fails, or the payload is too large."""
        try:
            data = self._dump_plain(payload)
        except (TypeError, ValueError, RecursionError, KombuError) as error:
            raise PayloadError(
                f"the payload cannot be serialized as {self._serializer}: {error}. Pass values that the "
                "serializer accepts (JSON: no NaN, no keys of mixed types)"
            ) from error
        if len(data) > self._max_bytes:
            raise PayloadError(
                f"the payload has {len(data)} bytes, expected at most {self._max_bytes}. Send a reference to "
                "large data, or raise lowkiq_max_payload_bytes (at most 1 MiB)"
            )
        return data

    def load_verified(self, data: bytes) -> Any:
        """Decode a payload: of this process, or one that the gate let pass (``gate.py``).

        Raises UndecodablePayload with the reason.
        """
        if len(data) > self._max_bytes:
            raise UndecodablePayload(f"it is larger than lowkiq_max_payload_bytes={self._max_bytes}")
        try:
            return self._load_other(data) if data.startswith(MARK) else self._load_plain(data)
        except UndecodablePayload:
            raise
        except Exception as error:
            raise UndecodablePayload(f"{type(error).__name__}: {error}") from error

    def check_type(self, data: bytes) -> None:
        """Check that the app accepts the content type. Decodes nothing. Raises UndecodablePayload."""
        name = data[len(MARK) :].partition(b"\0")[0].decode("latin-1") if data.startswith(MARK) else JSON_TYPE
        if not self._accepts(name):
            raise _not_accepted(name)

    def _accepts(self, content_type: str) -> bool:
        return self._accept is None or content_type in self._accept

    def _check_serializer(self) -> None:
        # A worker that cannot decode its own serializer's payloads would bury all of them.
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
        # kombu does not pass an empty body or another encoding to the serializer.
        if (written := _written_encoding(name)) is not None and not (body and written == encoding.decode()):
            raise UndecodablePayload(f"it has no body, or not the encoding of the serializer of {name!r}")
        if _registry.type_to_name.get(name) == AUTH:
            _check_envelope(body)
        return serialization.loads(body, name, encoding.decode(), accept=self._accept)


def _content_types(accept: Collection[str] | None) -> Collection[str] | None:
    try:
        content_types: Collection[str] | None = serialization.prepare_accept_content(accept)
    except KombuError as error:
        raise ConfigurationError(
            f"accept_content={accept!r} is invalid: expected installed serializers ({error}). "
            "Install the missing package; for 'auth', call app.setup_security() before the first call"
        ) from error
    return content_types


def _not_accepted(content_type: str) -> UndecodablePayload:
    return UndecodablePayload(f"content type {content_type!r} is not in accept_content")


def _load_json(data: bytes) -> Any:
    text = data.decode("utf-8")
    # An escape could spell the tag in another way.
    if b"__type__" in data or b"\\" in data:
        return _decoder.decode(text)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end = -1
    # The decoder skips white space around the value.
    return value if end == len(text) else _decoder.decode(text)


def _refuse_json(_: bytes) -> NoReturn:
    raise _not_accepted(JSON_TYPE)


#: ``_encoder`` makes one for each value. Without its C extension, it is the encoder.
_make_encoder: Any = vars(json.encoder)["c_make_encoder"] or (
    lambda *_: lambda value, _: _encoder.encode(value)
)
#: They do not look for a value that contains itself, and so end in a RecursionError.
_write, _write_in_order = (
    _make_encoder(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", sort, False, False)
    for sort in (True, False)
)


def dump_json(payload: Any) -> bytes:
    """Return the canonical JSON of a value. Raises TypeError, ValueError or RecursionError."""
    try:
        return "".join(_write(payload, 0)).encode("utf-8")
    except RecursionError:
        # Says whether the payload contains itself.
        return _encoder.encode(payload).encode("utf-8")


def _dump_in_order(payload: Any) -> bytes:
    return "".join(_write_in_order(payload, 0)).encode("utf-8")


# -- signed payloads


def _written_encoding(content_type: str) -> str | None:
    """Return the encoding that the serializer of a content type writes; None without an installed encoder."""
    codec = _registry._encoders.get(_registry.type_to_name.get(content_type))
    return None if codec is None else str(codec.content_encoding)


def _check_envelope(data: bytes) -> None:
    """Raise ValueError when the parts around a signed body differ from what ``auth`` writes.

    Otherwise, an attacker who can write to Redis could change the content type of a signed body, and thereby
    its value; and two texts could encode the same payload.
    """
    signer, signature, content_type, encoding, _ = _unpacked(data).split(SEPARATOR, 4)
    _unpacked(signer)
    _unpacked(signature)
    if encoding.decode() != _written_encoding(content_type.decode()):
        raise ValueError(f"the signed content has the unknown type {content_type!r} in {encoding!r}")


def _unpacked(text: bytes) -> bytes:
    """Decode base64. Raises ValueError for any form but the canonical one."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data) != text:
        raise ValueError("its base64 is not canonical")
    return data
