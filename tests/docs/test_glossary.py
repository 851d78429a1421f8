"""docs/glossary.md defines the words of the pages, each once and in one line."""

from __future__ import annotations

import re
from pathlib import Path

from celery_lowkiq.rules.text import TERMS

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(r"^\| (\*\*.+?) \| (.+?) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
WORDS = [word for names, _ in ROWS for word in re.findall(r"\*\*(.+?)\*\*", names)]
#: Words that readers meet in listings, metrics and errors, where nothing explains them.
MET = """
ordered queue, shard, id, job, payload, score, call, record, batch, run, claim, settle, lane, node,
lease, epoch, fence, fresh, lag, morgue, waiting, processing, tracker, poison pill, suspect,
isolation, run-now, requeue, bury, delete, pause, resume, doctor, repair, dump, load, quiet, window,
merge, due, priority, heartbeat, drain, stale, damaged
"""


def test_each_word_is_defined_once_and_briefly():
    assert len(WORDS) == len(set(WORDS))
    assert {" ".join(word.split()) for word in MET.split(",")} <= set(WORDS)
    assert [names for names, meaning in ROWS if len(meaning.split()) > 30] == []


def test_the_index_links_it():
    assert "(glossary.md)" in (DOCS / "index.md").read_text()


def test_the_dashboard_explains_words_as_the_glossary_does():
    meanings = {word: meaning for names, meaning in ROWS for word in re.findall(r"\*\*(.+?)\*\*", names)}
    assert {word: meanings.get(word) for word in TERMS} == TERMS
