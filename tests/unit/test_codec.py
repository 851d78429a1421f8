"""Rule 10: payloads are equal when their bytes are, so there is one way to write them."""

from __future__ import annotations

import contextlib
import datetime
import pickle
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import serialization

from celery_lowkiq.integration import codec
from celery_lowkiq.integration.codec import MARK, Codec, dump_json
from celery_lowkiq.rules.errors import ConfigurationError, PayloadError, UndecodablePayload

JSON = Codec("json", ["json"], 65536)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_is_written_is_read_back(value):
    try:
        data = JSON.dump(value)
    except PayloadError:
        return  # lone surrogates are no UTF-8
    assert JSON.load_verified(data) == value


def test_rule_10_equal_payloads_have_equal_bytes():
    assert JSON.dump({"b": 1, "a": [1, 2]}) == JSON.dump({"a": [1, 2], "b": 1}) == b'{"a":[1,2],"b":1}'
    assert JSON.dump("é😀") == '"é😀"'.encode()


@pytest.mark.parametrize("tag", ['"__type__"', '"\\u005f_type__"', '"\\u005f\\u005ftype\\u005f\\u005f"'])
def test_a_tagged_value_is_read_however_its_tag_is_written(tag):
    assert JSON.load_verified(b'[{%s:"uuid","__value__":{"hex":"%032x"}}]' % (tag.encode(), 7)) == [
        uuid.UUID(int=7)
    ]


@pytest.mark.parametrize("data", [b' {"v": 1}', b'{"v":1}\n', b'\t{ "v" : 1 } '])
def test_white_space_around_a_value_does_not_matter(data):
    assert JSON.load_verified(data) == {"v": 1}


@pytest.mark.parametrize("data", [b"", b" ", b"{", b'{"v":1}x', b'{"v":1}{"v":2}', b"[1,]", b"1 2", b"nul"])
def test_what_is_not_one_value_is_no_payload(data):
    with pytest.raises(UndecodablePayload, match="JSONDecodeError"):
        JSON.load_verified(data)


def test_what_celery_can_send_can_be_a_payload():
    value = {"at": datetime.datetime(2026, 1, 2, 3, 4, 5), "id": uuid.UUID(int=7)}
    assert JSON.load_verified(JSON.dump(value)) == value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: 1, "1": 2}, {None: 1, "a": 2}, object(), {1, 2}, "\ud800", {(1, 2): 3}],
)
def test_what_has_no_single_way_to_be_written_is_refused(value):
    with pytest.raises(PayloadError, match="cannot be serialized as json"):
        JSON.dump(value)


def test_endless_nesting_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="Circular reference detected"):
        JSON.dump(loop)
    assert JSON.dump([loop[:0]] * 3) == b"[[],[],[]]"


@given(JSON_VALUES | st.datetimes() | st.uuids() | st.decimals(allow_nan=False))
def test_the_encoder_that_is_made_once_writes_what_a_new_one_does(value):
    with contextlib.suppress(UnicodeEncodeError):
        assert dump_json([value]) == codec._encoder.encode([value]).encode()


def test_too_large_a_payload_is_refused_with_both_sizes():
    with pytest.raises(PayloadError, match="65539 bytes, expected at most 65536"):
        JSON.dump("x" * 65537)
    assert len(JSON.dump("x" * 65534)) == 65536


@given(st.binary())
def test_no_bytes_break_the_reader(data):
    with contextlib.suppress(UndecodablePayload):
        JSON.load_verified(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"NaN", b"[" * 100_000, b"\xff\xfe\0", b"{", MARK, MARK + b"x", MARK + b"a\0b", MARK + b"a\0b\0c"],
)
def test_hostile_bytes_are_undecodable(data):
    with pytest.raises(UndecodablePayload):
        JSON.load_verified(data)


class Bomb:
    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def test_l7_pickle_is_never_read_unless_accepted():
    content_type, encoding, body = serialization.dumps(Bomb(), serializer="pickle")
    data = b"\0".join((MARK + content_type.encode(), encoding.encode(), body))
    with pytest.raises(UndecodablePayload, match="accept_content"):
        JSON.load_verified(data)
    with pytest.raises(UndecodablePayload):
        JSON.load_verified(pickle.dumps(Bomb()))
    assert not Bomb.exploded
    Codec("json", ["json", "pickle"], 65536).load_verified(data)
    assert Bomb.exploded


@pytest.mark.parametrize("serializer", ["pickle", "yaml", "msgpack"])
def test_other_serializers(serializer):
    if serializer != "pickle":
        pytest.importorskip(serializer)
    codec = Codec(serializer, ["json", serializer], 65536)
    value = {"a": [1, "é"]}
    data = codec.dump(value)
    assert codec.load_verified(data) == value
    assert codec.load_verified(JSON.dump(value)) == value


@pytest.mark.parametrize(
    "serializer, accept, words",
    [
        ("jsno", ["json"], "lowkiq_serializer='jsno' is invalid: .*No encoder installed for jsno"),
        ("pickle", ["json"], "lowkiq_serializer='pickle' is invalid: .*is not in accept_content"),
        (
            "json",
            ["pickle"],
            "lowkiq_serializer='json' is invalid: .*'application/json' is not in accept_content",
        ),
        ("json", [], "lowkiq_serializer='json' is invalid: .*'application/json' is not in accept_content"),
        ("json", ["jsno"], "accept_content=.'jsno'. is invalid: .*installed for jsno"),
    ],
)
def test_s1_a_serializer_that_no_worker_could_read_is_refused(serializer, accept, words):
    """S1: of JSON, which is always installed, this was not asked."""
    with pytest.raises(ConfigurationError, match=words):
        Codec(serializer, accept, 65536)


def test_s1_what_is_read_has_a_content_type_that_the_app_accepts():
    """S1: what had no mark was read as JSON, whatever the app accepts."""
    pickles = Codec("pickle", ["pickle"], 65536)
    assert pickles.load_verified(pickles.dump({"a": 1})) == {"a": 1}
    for data in (b'{"a":1}', b"null", b"garbage", MARK + b"application/json\0utf-8\0[1]"):
        for read in (pickles.load_verified, pickles.check_type):
            with pytest.raises(UndecodablePayload, match="'application/json' is not in accept_content"):
                read(data)
    others = Codec("json", ["json"], 65536)
    for serializer in ("yaml", "msgpack", "pickle"):
        data = Codec(serializer, [serializer], 65536).dump({"a": 1})
        for read in (others.load_verified, others.check_type):
            with pytest.raises(UndecodablePayload, match="is not in accept_content"):
                read(data)


def test_an_app_that_names_no_content_types_accepts_what_kombu_does():
    anything = Codec("json", None, 65536)
    assert anything.load_verified(b"1") == 1
    with pytest.raises(UndecodablePayload, match="disabled"):
        anything.load_verified(Codec("pickle", ["pickle"], 65536).dump(1))


def test_p8_what_no_call_could_have_stored_is_too_large_to_be_read():
    """P8: the size was checked only when a payload was written."""
    small = Codec("json", ["json"], 10)
    assert small.load_verified(b'"12345678"') == "12345678"
    with pytest.raises(UndecodablePayload, match="larger than lowkiq_max_payload_bytes=10"):
        small.load_verified(b'"123456789"')


@pytest.mark.parametrize("serializer", ["pickle", "yaml", "msgpack"])
def test_nothing_is_no_payload(serializer):
    """kombu returns it as it is, without asking the serializer."""
    codec = Codec(serializer, [serializer], 65536)
    head = b"\0".join(codec.dump(1).split(b"\0")[:2])
    with pytest.raises(UndecodablePayload, match="it has no body, or not the encoding"):
        codec.load_verified(head + b"\0")
