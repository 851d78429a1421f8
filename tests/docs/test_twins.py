"""Each page of the documentation as Markdown, and the list of them for programs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
from markdown_twins import Twins  # noqa: E402 - an extension of Sphinx, which is on no path

KINDS = ["Tutorials", "How-to guides", "Reference", "Explanation"]


def title(path: Path) -> str:
    found = re.search(r"^# (.*)$", path.read_text(), re.MULTILINE)
    return found[1] if found else path.stem


PAGES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md"))]
TITLES = {page: title(DOCS / f"{page}.md") for page in PAGES if not page.startswith("_build/")}


@pytest.fixture(scope="module")
def twins() -> Twins:
    return Twins(DOCS, TITLES)


@pytest.mark.parametrize("page", TITLES)
def test_a_twin_is_plain_markdown(twins, page):
    assert not re.search(r"^```+\{|<!--|</?p\b", twins.twin(page), re.MULTILINE)


def test_warnings_are_kept(twins):
    assert "> **Equal payloads are one payload**" in twins.twin("quickstart")
    assert "> Of equal payloads the **smallest score stays**." in twins.twin("quickstart")


def test_what_a_page_includes_is_in_its_twin(twins):
    assert (ROOT / "examples" / "middlewares.py").read_text().strip() in twins.twin("middlewares")
    assert twins.twin("changelog").startswith("# Changelog")
    assert "](order-after-failure.md)" in twins.twin("changelog")


def test_the_list_has_each_page_under_one_of_the_four_kinds(twins):
    text = twins.index()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == KINDS
    listed = re.findall(r"^- \[.*?\]\((.*)\.md\): \S", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        page for page in TITLES if page != "index" and not re.match(r"adr/\d", page)
    )
    assert set(twins.order()) == set(TITLES)


def test_an_unknown_directive_is_an_error(tmp_path):
    (tmp_path / "page.md").write_text("# Page\n\n```{tabs} one\ntext\n```\n")
    with pytest.raises(ValueError, match="directive tabs is unknown"):
        Twins(tmp_path, {"page": "Page"}).twin("page")
