"""Signatures, and the keys that make them."""

from __future__ import annotations

import json
import logging
import os

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.gate import Signing, read_keys
from celery_lowkiq.integration.settings import read_settings
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Payload, StoredRecord
from celery_lowkiq.rules.signatures import SIGNATURE_CHARS, Fault, KeyRing, split_record

OLD, NEW = b"old secret of 16 bytes", b"new secret, " * 8
RING = KeyRing({"2026-11": NEW, "2026-10": OLD})
PAYLOAD = b'{"amount":10}'


def fault(ring, signature, queue="pay", job_id=b"42", payload=PAYLOAD, score=7.0):
    return ring.payload_fault(queue, job_id, payload, score, signature)


@pytest.mark.parametrize("score", [None, 7.0])
def test_what_was_signed_verifies_and_nothing_else_does(score):
    signature = RING.sign_payload("pay", b"42", PAYLOAD, score)
    assert len(signature) == SIGNATURE_CHARS
    assert fault(RING, signature) is None
    assert fault(RING, signature, queue="refund") is Fault.WRONG
    assert fault(RING, signature, job_id=b"43") is Fault.WRONG
    assert fault(RING, signature, payload=b'{"amount":11}') is Fault.WRONG
    assert fault(RING, signature, score=8.0) is (None if score is None else Fault.WRONG)


def test_a_signature_does_not_serve_as_one_of_another_kind():
    bound, unbound = RING.sign_payload("pay", b"42", PAYLOAD, 7.0), RING.sign_payload("pay", b"42", PAYLOAD)
    assert fault(RING, b"s" + bound[1:]) is Fault.WRONG
    assert fault(RING, b"S" + unbound[1:]) is Fault.WRONG
    assert fault(RING, b"c" + unbound[1:]) is Fault.MALFORMED
    record = RING.sign_record("pay", b"42", b"0123456789", b'["id"]')
    assert RING.record_fault("pay", b"42", b"0123456789", record + b'["id"]') is None
    assert RING.record_fault("pay", b"42", b"0123456789", b"c" + unbound[1:] + b'["id"]') is Fault.WRONG


@pytest.mark.parametrize("score", [None, 7.0])
def test_no_part_of_a_payload_becomes_one_of_the_id(score):
    """The end of a payload verified as one of another id: what is not JSON may have a zero byte."""
    head = b"a\0" if score is None else b"a\0007.0\0"
    signature = RING.sign_payload("pay", b"42", head + PAYLOAD, score)
    job_id = b"42\0a" if score is None else b"42\0007.0\0a"
    assert fault(RING, signature, job_id=job_id) is Fault.WRONG


@pytest.mark.parametrize("place", range(SIGNATURE_CHARS))
def test_each_character_of_a_signature_counts(place):
    signature = RING.sign_payload("pay", b"42", PAYLOAD)
    for other in b"sSA/+z\0\xff \n":
        changed = signature[:place] + bytes([other]) + signature[place + 1 :]
        assert fault(RING, changed) is not None or changed == signature


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 23, 25, 48])
def test_a_signature_of_another_length_is_refused(length):
    signature = (RING.sign_payload("pay", b"42", PAYLOAD) * 2)[:length]
    assert fault(RING, signature) is (Fault.MALFORMED if length else Fault.UNSIGNED)


@given(st.binary(max_size=60))
def test_bytes_of_whatever_kind_are_a_fault_and_no_error(data):
    assert fault(RING, data) is not None
    assert RING.record_fault("pay", b"42", b"0123456789", data) is not None


@given(st.lists(st.sampled_from(["a", "ab", "b", "abc", ""]), min_size=2, max_size=2), st.floats(0, 9))
def test_parts_cannot_be_moved_into_each_other(parts, score):
    job_id, payload = (part.encode() for part in parts)
    signature = RING.sign_payload("q", job_id, payload, score)
    for other in (b"a", b"ab", b"b", b"abc", b""):
        for data in (b"a", b"ab", b"b", b"abc", b""):
            is_same = (other, data) == (job_id, payload)
            assert (RING.payload_fault("q", other, data, score, signature) is None) == is_same


def test_a_score_that_went_through_redis_verifies():
    for score in (0.1 + 0.2, -0.0, 1e300, 2**53, -7, 1795325834.508431):
        signature = RING.sign_payload("pay", b"42", PAYLOAD, score)
        assert fault(RING, signature, score=float(repr(float(score) + 0.0).removesuffix(".0"))) is None


def test_rotation_the_first_key_signs_and_all_verify():
    before, after = KeyRing({"old": OLD}), KeyRing({"new": NEW})
    both, turned = KeyRing({"old": OLD, "new": NEW}), RING
    assert both.sign_payload("pay", b"42", PAYLOAD) == before.sign_payload("pay", b"42", PAYLOAD)
    assert turned.sign_payload("pay", b"42", PAYLOAD) == after.sign_payload("pay", b"42", PAYLOAD)
    for ring in (before, after):
        assert fault(both, ring.sign_payload("pay", b"42", PAYLOAD)) is None
        assert fault(turned, ring.sign_payload("pay", b"42", PAYLOAD)) is None
    assert fault(after, before.sign_payload("pay", b"42", PAYLOAD)) is Fault.UNKNOWN_KEY


def test_keys_whose_short_names_are_equal_all_verify():
    """Ten bits name a key."""
    by_name = {}
    for number in range(2000):
        secret = b"secret number %08d" % number
        other = by_name.setdefault(KeyRing({"a": secret})._keys[0].hint, secret)
        if other != secret:
            break
    one, two, both = KeyRing({"a": secret}), KeyRing({"b": other}), KeyRing({"a": secret, "b": other})
    for ring in (one, two):
        assert fault(both, ring.sign_payload("pay", b"42", PAYLOAD)) is None
    assert fault(one, two.sign_payload("pay", b"42", PAYLOAD)) is Fault.WRONG


# -- the setting


def checked(signing, payload):
    return signing.payload_check("pay")("42", payload)


def test_accept_takes_what_is_not_signed_and_require_does_not():
    accept, require = Signing("accept", {"a": NEW}), Signing("require", {"a": NEW})
    plain, wrong = Payload(PAYLOAD, 7.0), Payload(PAYLOAD, 7.0, signature=b"s" * 24)
    good = Payload(PAYLOAD, 7.0, signature=accept.sign_payload("pay", b"42", PAYLOAD, None))
    assert [checked(accept, each) is None for each in (good, plain, wrong)] == [True, True, False]
    assert [checked(require, each) is None for each in (good, plain, wrong)] == [True, False, False]
    assert Signing("off", None).payload_check("pay") is None


def test_a_record_is_bound_to_queue_id_and_payload():
    signing = Signing("require", {"a": NEW})
    stored = StoredRecord(b"42\0" + b"0123456789" + b"000000000001", 0, b"")
    data = signing.signed_record("pay", stored, b'["id"]')
    assert split_record(data)[1] == b'["id"]'
    assert signing.record_fault("pay", stored._replace(data=data)) is None
    for queue, key, found in (
        ("refund", stored.key, data),
        ("pay", b"43" + stored.key[2:], data),
        ("pay", b"42\0" + b"9123456789" + b"000000000001", data),
        ("pay", stored.key, data[:-1] + b"}"),
        ("pay", stored.key, b'["id"]'),
        ("pay", stored.key, data[:20]),
    ):
        assert signing.record_fault(queue, stored._replace(key=key, data=found)) is not None
    unsigned = stored._replace(data=b'["id"]')
    assert Signing("accept", {"a": NEW}).record_fault("pay", unsigned) is None


WRONG_KEYS = [
    "",
    7,
    {},
    [],
    {"a": "fifteen bytes.."},
    {"a": b"short"},
    {"a": 16 * 7},
    {7: "a secret of 16 bytes"},
    {"": "a secret of 16 bytes"},
    {"fine": "a secret of 16 bytes", "a": None},
]


@pytest.mark.parametrize("keys", WRONG_KEYS, ids=repr)
def test_wrong_keys_are_refused_when_the_app_starts(keys):
    app = Celery("signed", set_as_current=False)
    app.conf.update(lowkiq_signing="require", lowkiq_signing_keys=keys)
    with pytest.raises(ConfigurationError, match="lowkiq_signing_keys is invalid: expected a dict of names"):
        context_of(app)


def test_signing_without_keys_is_refused():
    with pytest.raises(
        ConfigurationError, match="lowkiq_signing='accept' is invalid without lowkiq_signing_keys"
    ):
        Signing("accept", None)
    app = Celery("signed", set_as_current=False)
    app.conf.update(lowkiq_signing="on")
    with pytest.raises(
        ConfigurationError, match="lowkiq_signing='on' is invalid: expected 'off', 'accept' or"
    ):
        read_settings(app)


SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize("keys", [{SECRET: "short"}, {"a": SECRET, "b": 7}, lambda: {"a": SECRET, "b": "x"}])
def test_no_error_shows_a_secret_nor_a_name(keys):
    with pytest.raises(ConfigurationError) as raised:
        Signing("require", read_keys(keys) if isinstance(keys, dict) else keys)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_nothing_shows_a_key():
    app = Celery("signed", set_as_current=False, broker="redis://nowhere")
    app.conf.update(lowkiq_signing="require", lowkiq_signing_keys={"a": SECRET})
    context = context_of(app)
    shown = [repr(context.signing), repr(context.settings), str(vars(context)), app.bugreport()]
    shown += [repr(context.signing._ring), app.conf.humanize(), json.dumps(app.conf.table(), default=repr)]
    assert not [text for text in shown if SECRET in text]


# -- keys that change


class Source:
    """Keys that a function returns, and a clock."""

    def __init__(self, keys):
        self.keys = keys
        self.now = 0.0
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if isinstance(self.keys, Exception):
            raise self.keys
        return self.keys

    def signing(self):
        return Signing("require", self, lambda: self.now)


def made_by(keys):
    return Payload(PAYLOAD, 7.0, signature=KeyRing(keys).sign_payload("pay", b"42", PAYLOAD))


def test_a_function_is_called_again_and_its_first_key_signs():
    source = Source({"a": OLD})
    signing = source.signing()
    source.keys = {"b": NEW, "a": OLD}
    assert signing.sign_payload("pay", b"42", PAYLOAD, None) == made_by({"a": OLD}).signature
    source.now = 10.0
    assert signing.sign_payload("pay", b"42", PAYLOAD, None) == made_by({"b": NEW}).signature
    source.keys = {"a": OLD, "b": NEW}
    source.now = 20.0
    assert signing.sign_payload("pay", b"42", PAYLOAD, None) == made_by({"a": OLD}).signature


def test_an_unknown_key_makes_the_worker_look_at_once():
    source = Source({"a": OLD})
    signing = source.signing()
    source.keys = {"b": NEW, "a": OLD}
    source.now = 1.0
    assert checked(signing, made_by({"b": NEW})) is None
    for _ in range(100):
        assert checked(signing, made_by({"c": b"x" * 16})) is Fault.UNKNOWN_KEY
    assert source.calls == 2


def test_keys_that_cannot_be_read_again_stay_in_use(caplog):
    source = Source({"a": OLD})
    signing = source.signing()
    for number, wrong in enumerate((RuntimeError(SECRET), {"a": SECRET, "b": "short"}, {}), 1):
        source.keys, source.now = wrong, 10.0 * number
        with caplog.at_level(logging.ERROR):
            assert checked(signing, made_by({"a": OLD})) is None
    assert caplog.text.count("those of before stay in use") == 3
    assert SECRET not in caplog.text


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    path, now = tmp_path / "keys.json", [0.0]
    path.write_text(json.dumps({"a": OLD.decode()}))
    signing = Signing("require", str(path), lambda: now[0])
    fresh = tmp_path / "fresh.json"
    fresh.write_text(json.dumps({"b": NEW.decode(), "a": OLD.decode()}))
    os.replace(fresh, path)
    now[0] = 1.0
    assert signing.sign_payload("pay", b"42", PAYLOAD, None) == made_by({"b": NEW}).signature
    path.unlink()
    now[0] = 2.0
    assert checked(signing, made_by({"a": OLD})) is None


def test_a_file_that_cannot_be_read_is_named_without_its_text(tmp_path):
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        Signing("require", path)
    path.write_text(f'{{"a": "{SECRET}"')
    with pytest.raises(ConfigurationError) as raised:
        Signing("require", path)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
