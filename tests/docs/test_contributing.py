"""CONTRIBUTING.md and docs/code-walk.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_lowkiq"
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
WALK = (ROOT / "docs" / "code-walk.md").read_text()
NAMED = re.compile(r"`((?:rules|store|worker|integration)/[\w/]+\.(?:py|lua))`")
QUESTIONS = re.findall(r"^\| (.+\?) \| (.+) \|$", TEXT, re.MULTILINE)
MOVED = (PACKAGE / "integration" / "app").exists() and (PACKAGE / "worker" / "lane").exists()


def test_thirty_questions_have_an_answer():
    assert len(QUESTIONS) == 30
    assert len({question for question, _ in QUESTIONS}) == 30


@pytest.mark.skipif(not MOVED, reason="the page has the files of the layout to come")
@pytest.mark.parametrize("question, files", QUESTIONS)
def test_the_files_exist(question, files):
    named = re.findall(r"`([\w/]+(?:\.(?:py|lua)|/))`", files)
    assert named
    assert [name for name in named if not (PACKAGE / name).exists()] == []


@pytest.mark.skipif(not MOVED, reason="the page has the files of the layout to come")
def test_the_files_of_the_walk_exist():
    named = NAMED.findall(WALK)
    assert len(named) > 30
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_the_links_lead_to_pages():
    links = re.findall(r"\]\((docs/[^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
