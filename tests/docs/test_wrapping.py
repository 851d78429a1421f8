"""Lines of prose have at most 100 characters; code, tables and lines with a URL are as long as they must."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/adr/*.md"),
    *ROOT.glob("docs/at-night/*.md"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "contrib/README.md")),
]
WIDTH = 100
#: A directive whose body is prose, such as an admonition, stands between fences as code does.
FENCE = re.compile(r"^ *```(?P<language>.*)$")
#: A table's row, an image or a URL cannot be broken.
UNBROKEN = re.compile(r"^\||^ *!\[|https?://\S{60}")


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is neither code nor a part of a table."""
    language: str | None = None  # of the block that the line is in
    for number, line in enumerate(page.splitlines(), 1):
        fence = FENCE.match(line)
        if fence:
            language = fence["language"] if language is None else None
        elif (language is None or language.startswith("{admonition")) and not UNBROKEN.search(line):
            yield number, line


def test_no_line_of_prose_is_longer_than_100():
    assert len(PAGES) > 40
    long = [
        f"{page.relative_to(ROOT)}:{number} has {len(line)}"
        for page in PAGES
        for number, line in prose(page.read_text())
        if len(line) > WIDTH
    ]
    assert not long, "\n".join(long)


def test_what_counts_as_prose():
    page = "text\n```sh\ncode\n```\n```{admonition} Title\nbody\n```\n| a | b |\nend"
    assert [line for _, line in prose(page)] == ["text", "body", "end"]
