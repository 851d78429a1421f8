"""Files that documentation, docstrings and comments name exist, and so does what they name in a file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("celery_lowkiq", "benchmarks", "contrib", "docs", "examples", "tests")
FILES = [*ROOT.glob("*.*"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*"))]
#: The path of each file, and every end of it.
ENDS = {"/".join(path.parts[start:]) for path in FILES for start in range(len(ROOT.parts), len(path.parts))}
TEXTS = {
    file.relative_to(ROOT).as_posix(): file.read_text()
    for file in FILES
    if file.suffix in (".md", ".py", ".lua")
}
PATH = r"(?:\w[\w-]*/)*\w+\.(?:py|lua)"
#: Files of a reader's project.
FOREIGN = {"asgi.py", "flowerconfig.py", "manage.py"}
#: Where a path is named: in backticks, and in comments.
QUOTED = re.compile(rf"`({PATH})(?:::[\w:]+)?`")
COMMENT = {
    ".py": re.compile(r"(?:^| )#:? (.*)", re.MULTILINE),
    ".lua": re.compile(r"^ *-- (.*)", re.MULTILINE),
}
BARE = re.compile(rf"(?<![\w`/.*])({PATH})(?![\w`/])")


def named(path: str, text: str) -> set[str]:
    comments = COMMENT[Path(path).suffix].findall(text) if Path(path).suffix in COMMENT else ()
    return {*QUOTED.findall(text), *(name for comment in comments for name in BARE.findall(comment))}


def test_the_files_exist():
    found = [(path, name) for path, text in TEXTS.items() for name in sorted(named(path, text))]
    assert len(found) > 300
    assert [(path, name) for path, name in found if name not in ENDS | FOREIGN] == []


def test_what_is_named_in_a_file_is_there():
    found = [
        (page, name, file)
        for page, text in TEXTS.items()
        for name, file in re.findall(rf"`([\w.]+)(?:\(\))?`\s+(?:in|of)\s+`({PATH})`", text)
    ]
    assert len(found) > 20
    for page, name, file in found:
        texts = [text for path, text in TEXTS.items() if f"/{path}".endswith(f"/{file}")]
        last = name.rpartition(".")[2]
        assert any(re.search(rf"\b{last}\b", text) for text in texts), f"{page}: {name} of {file}"
