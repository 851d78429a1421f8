"""What is masked in payloads and in texts, and what is not."""

from __future__ import annotations

import json
import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.rules.redaction import MASK, Redactor

NAMES = ("password", "token", "secret", "authorization", "card")
redactor = Redactor(NAMES)


@pytest.mark.parametrize(
    "key",
    ["password", "PASSWORD", "db_password", "accessToken", "X-Api-Token", "cardNumber", b"Authorization"],
)
def test_names_are_found_in_keys_of_any_case(key):
    assert redactor.covers(key)
    assert redactor.value({key: "hunter2"}) == {key: MASK}


@pytest.mark.parametrize("key", ["pass", "user", "", 4, None])
def test_other_keys_are_left(key):
    assert redactor.value({key: "x"}) == {key: "x"}


def test_nested_values_are_masked_whole():
    value = {
        "a": [{"card": {"number": "4111", "cvv": 1}}],
        "headers": [["Authorization", "Bearer x"], ["A", 1]],
    }
    assert redactor.value(value) == {
        "a": [{"card": MASK}],
        "headers": [["Authorization", MASK], ["A", 1]],
    }


def test_json_within_a_payload_is_masked():
    inner = json.dumps({"id": 1, "password": 'hun"ter2'})
    masked = redactor.value({"body": inner})["body"]
    assert json.loads(masked) == {"id": 1, "password": MASK}


TEXTS = [
    ("{'password': 'hunter2', 'id': 1}", "{'password': '[redacted]', 'id': 1}"),
    ('{"password":"hun\\"ter2","id":1}', '{"password":"[redacted]","id":1}'),
    ("login(password='hunter2')", "login(password='[redacted]')"),
    ("b'token': b'hunter2'.", "b'token': '[redacted]'."),
    ('"{\\"card\\": \\"hunter2\\", \\"id\\": 1}"', '"{\\"card\\": \\"[redacted]\\", \\"id\\": 1}"'),
    ("https://x/?token=hunter2&id=1", "https://x/?token=[redacted]&id=1"),
    ("Authorization: Bearer hunter2\nHost: x", "Authorization: [redacted]\nHost: x"),
    ("token: Bearer hunter2 is old", "token: [redacted] is old"),
    ("('authorization', 'hunter2')", "('authorization', '[redacted]')"),
    ("{'card': {'number': 'hunter2', 'x': '}'}, 'id': 1}", "{'card': [redacted], 'id': 1}"),
    ("{'card': [1, ('hunter2', 3)], 'id': 1}", "{'card': [redacted], 'id': 1}"),
    ("{'password': 'hunter2 and more that is cut", "{'password': '[redacted]'"),
    ("{'card': {'number': 'hunter2", "{'card': [redacted]"),
    ("secret=", "secret="),
    ("the card was refused", "the card was refused"),
]


@pytest.mark.parametrize("text, masked", TEXTS)
def test_texts(text, masked):
    assert redactor.text(text) == masked
    assert redactor.text(masked) == masked


def test_code_of_a_traceback_is_no_value():
    def fail(password):
        token = password
        raise ValueError(f"password={token!r}")

    try:
        fail(password="hunter2")
    except ValueError:
        text = traceback.format_exc()
    masked = redactor.text(text)
    assert "hunter2" not in masked.partition("in fail")[2]
    assert "raise ValueError" in masked
    assert 'fail(password="hunter2")' in masked


def test_a_secret_is_masked_where_no_key_is():
    secrets = redactor.secrets({"card": {"number": 4111111111, "owner": "Ann\nLee"}, "id": "no secret"})
    text = redactor.text("4111111111 of 'Ann\\nLee' refused: no secret", secrets)
    assert text == "[redacted] of '[redacted]' refused: no secret"


def test_short_values_and_flags_are_no_secrets():
    assert redactor.secrets({"token": True, "card": "12", "secret": None}) == set()


@pytest.mark.parametrize(
    "value", [{"password": MASK}, [{"a": {"card": MASK}}], {"body": '{"token":"[redacted]"}'}]
)
def test_a_mask_is_found(value):
    assert redactor.has_mask(value)


@pytest.mark.parametrize("value", [{"password": "x"}, {"card": {"n": 1}}, [], None])
def test_no_mask_is_found(value):
    assert not redactor.has_mask(value)


def test_without_names_nothing_is_masked():
    nobody = Redactor(())
    value = {"password": "hunter2"}
    assert not nobody
    assert nobody.value(value) == value
    assert nobody.text(str(value)) == str(value)
    assert nobody.secrets(value) == set()


def test_depth_is_bounded():
    deep: object = "x"
    for _ in range(900):
        deep = [deep]
    assert MASK in repr(redactor.value(deep))


@pytest.mark.parametrize(
    "begin, part",
    [("", part) for part in ("card", "card=", "'card", "('card", "card:{", "password='\\", 'File "\n    ')]
    + [('card="', "\\"), ("card:[", '\\"'), ("card:[", "\\")],
)
def test_a_hostile_text_takes_linear_time(begin, part):
    text = begin + part * (512 * 1024 // len(part))
    began = time.process_time()
    redactor.text(text)
    assert time.process_time() - began < 1


VALUES = st.recursive(
    st.text(max_size=5) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.sampled_from(NAMES), st.text("abcXYZ_-", max_size=4), st.booleans())
def test_no_secret_is_left(other, name, more, is_json):
    value = {"o": other, f"{more}{name.title()}{more}": "hunter2-hunter2"}
    assert "hunter2" not in repr(redactor.value(value))
    text = json.dumps(value, ensure_ascii=False) if is_json else repr(value)
    assert "hunter2" not in redactor.text(text)
    assert "hunter2" not in redactor.text(text[:-4])
