"""CONTRIBUTING.md answers its questions with files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_lowkiq"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
QUESTIONS = re.findall(r"^\| (.+\?) \| (.+) \|$", TEXT, re.MULTILINE)


def test_thirty_questions_have_an_answer():
    assert len(QUESTIONS) >= 30
    assert len({question for question, _ in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question, files", QUESTIONS)
def test_the_files_exist(question, files):
    named = re.findall(r"`([\w/]+(?:\.(?:py|lua)|/))`", files)
    assert named
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_the_links_lead_to_pages():
    links = re.findall(r"\]\((docs/[^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
