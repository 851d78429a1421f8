"""Each sentence of docs/threat-model.md has a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (?P<sentence>[^|]+) \| (?P<tests>[^|]+) \|$", (ROOT / "docs" / "threat-model.md").read_text(), re.M
)
SENTENCES = [(sentence, re.findall(r"`(tests/[^`]+)`", tests)) for sentence, tests in ROWS]


def test_there_are_sentences():
    assert len(SENTENCES) > 30


@pytest.mark.parametrize("sentence, tests", SENTENCES, ids=[sentence[:40] for sentence, _ in SENTENCES])
def test_a_sentence_has_its_test(sentence, tests):
    assert tests, sentence
    for name in tests:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists()
        assert not test or re.search(rf"def {test}\(", (ROOT / path).read_text()), name
