"""What is written of payloads that are no JSON."""

from __future__ import annotations

import json
import math

import pytest

from celery_lowkiq.cli.output import payload_text
from celery_lowkiq.integration.json_records import ShownPayload, encode, plain, writable


class Nameless:
    def __repr__(self) -> str:
        raise OSError("no name")


def circle() -> list[object]:
    found: list[object] = [1]
    found.append(found)
    return found


def nested(depth: int) -> list[object]:
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


def strict(text: str) -> object:
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [1, None]}, {"a": [1, None]}),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (circle(), "[1, [...]]"),
        (math.nan, "nan"),
        ([1, math.inf], "[1, inf]"),
        ({1, 2}, "{1, 2}"),
        (Nameless(), "<Nameless without a repr: OSError>"),
        (nested(100_000), "<list without a repr: RecursionError>"),
    ],
)
def test_every_payload_is_shown(value, shown):
    found = strict(encode([[ShownPayload(b"not JSON", 1.0, decoded=value)]]))
    assert (found[0][0]["score"], found[0][0]["value"]) == (1.0, shown)
    assert payload_text(ShownPayload(value, 1.0), None).strip('"') == (
        shown if isinstance(shown, str) else encode(shown)
    )


def test_a_repr_is_cut():
    assert len(writable({(1,): "x" * 100_000})) == 10_000


def test_a_score_without_a_number_in_json_is_null():
    assert plain(ShownPayload(b"1", math.inf))["score"] is None
