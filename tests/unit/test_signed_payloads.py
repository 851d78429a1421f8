"""Payloads that Celery's ``auth`` has signed: what was changed in any way is not read."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from celery.security.serialization import register_auth
from kombu import serialization

from celery_lowkiq.integration.codec import MARK, SEPARATOR, Codec
from celery_lowkiq.integration.gate import Gate, Signing
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.rules.errors import ConfigurationError, UndecodablePayload
from celery_lowkiq.rules.models import Payload
from tests.signing import make_identity
from tests.unit.lanes import read_record

VALUE = {"amount": 10, "to": "anna"}


def register(identity, **options):
    key, certificate = (Path(identity[name]).read_text() for name in ("security_key", "security_certificate"))
    register_auth(key, None, certificate, identity["security_cert_store"], **options)


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    return make_identity(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def registry(monkeypatch):
    """kombu's own, as it was before the test when the test has ended."""
    for name in ("_encoders", "_decoders", "name_to_type", "type_to_name"):
        monkeypatch.setattr(serialization.registry, name, dict(getattr(serialization.registry, name)))


@pytest.fixture
def codec(registry, identity):
    register(identity)
    return Codec("auth", ["auth"], 65536)


def repacked(data, change):
    """With other parts in what was signed."""
    head, _, text = data.rpartition(b"\0")
    parts = base64.b64decode(text).split(SEPARATOR, 4)
    change(parts)
    return head + b"\0" + base64.b64encode(SEPARATOR.join(parts))


def test_s1_what_was_signed_is_read_and_equal_payloads_differ(codec):
    """S1: the signature has salt, so that equal payloads are never one."""
    one, other = codec.dump(VALUE), codec.dump(VALUE)
    assert codec.load_verified(one) == codec.load_verified(other) == VALUE
    assert one != other


@pytest.mark.parametrize("flip", [1, 2, 4, 8, 16, 32, 64, 128])
def test_s1_one_flipped_byte_is_seen_wherever_it_is(codec, flip):
    """S1: in the type of the signed content, which has no signature, it made text of the payload."""
    data = codec.dump(VALUE)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= flip
        with pytest.raises(UndecodablePayload):
            codec.load_verified(bytes(changed))
        with pytest.raises(UndecodablePayload):
            Gate("q", codec, codec, Signing("off", None)).check_accepted("1", Payload(bytes(changed), 1.0))


@pytest.mark.parametrize(
    "data",
    [
        b'{"amount":1000000,"to":"mallory"}',
        MARK + b"application/json\0utf-8\0[1]",
        MARK + b"application/data\0utf-8\0",
        MARK + b"application/data\0utf-8\0" + base64.b64encode(b"{}"),
        MARK + b"application/text\0utf-8\0hello",
    ],
)
def test_s1_what_was_not_signed_is_not_read(codec, data):
    """S1: JSON was read in any app, and of nothing kombu makes an empty payload without a signature."""
    with pytest.raises(UndecodablePayload):
        codec.load_verified(data)


@pytest.mark.parametrize("content_type", [b"text/plain", b"application/jsom", b"application/x-msgpack"])
def test_s1_the_type_of_what_was_signed_is_not_changed(codec, content_type):
    """S1: an unknown one made text of the signed JSON."""

    def change(parts):
        parts[2] = content_type

    with pytest.raises(UndecodablePayload):
        codec.load_verified(repacked(codec.dump(VALUE), change))


@pytest.mark.parametrize("inner", ["json", "yaml", "msgpack", "pickle"])
def test_all_that_can_be_signed_is_read(registry, identity, inner):
    register(identity, serializer=inner)
    codec = Codec("auth", ["auth"], 65536)
    assert codec.load_verified(codec.dump(VALUE)) == VALUE


def test_s1_what_a_stranger_signed_is_not_read(codec, tmp_path):
    """S1: a key that is not in the store of certificates is nobody's."""
    own = serialization.registry._encoders["auth"], serialization.registry._decoders["application/data"]
    register(make_identity(tmp_path, "mallory"))
    forged = codec.dump(VALUE)
    assert codec.load_verified(forged) == VALUE
    serialization.registry._encoders["auth"], serialization.registry._decoders["application/data"] = own
    with pytest.raises(UndecodablePayload):
        codec.load_verified(forged)


def test_s1_an_app_without_setup_security_is_refused(registry):
    """S1: kombu's own error named no setting."""
    with pytest.raises(ConfigurationError, match=r"accept_content=.'auth'. is invalid.*app.setup_security"):
        Codec("auth", ["auth"], 65536)


class TestRecords:
    """S1: a record that cannot be read still names its call, so that the call can be told."""

    NOTE = CallRecord("id 1", {"tenant": "acme"}, {"errbacks": [{"task": "mourn"}]}, "f" * 32)

    def test_they_come_back_as_they_were(self, codec):
        for note in (self.NOTE, CallRecord("a"), CallRecord('"\\ä\n'), CallRecord("b", tracker="0" * 32)):
            assert read_record(note.dump(codec), codec) == note

    def test_one_flipped_byte_ends_the_call_or_changes_nothing(self, codec):
        data = self.NOTE.dump(codec)
        named = 0
        for position in range(len(data)):
            changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
            try:
                # In the name, which is not signed, and not looked at when the record can be read.
                assert read_record(changed, codec) == self.NOTE
            except UndecodablePayload:
                named += CallRecord.named(changed) == CallRecord("id 1", tracker="f" * 32)
        assert named > len(data) - 60

    def test_plain_ones_are_no_records_and_name_their_calls(self, codec):
        data = self.NOTE.dump(Codec("json", ["json"], 65536))
        with pytest.raises(UndecodablePayload, match="'application/json' is not in accept_content"):
            read_record(data, codec)
        assert CallRecord.named(data) == CallRecord("id 1", tracker="f" * 32)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[",
            b"[1]",
            b'"a"',
            b'[""]',
            b'["\\q"]',
            b'["\xff"]',
            b"\x01application/data\0\0",
            b'{"a":1}',
        ],
    )
    def test_what_names_no_call(self, data):
        assert CallRecord.named(data) is None
