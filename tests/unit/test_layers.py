"""A module imports only from the floors below (DESIGN section 6), and the house stays small."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "celery_lowkiq"
FLOORS = ["rules", "store", "worker", "integration"]
#: What each folder may import from the package; edges may use everything.
BELOW = {
    "rules": {"rules"},
    "store": {"rules", "store"},
    "worker": {"rules", "worker"},
    "integration": {"rules", "store", "worker", "integration"},
}
CELERY_FAMILY = {"celery", "kombu", "billiard", "vine", "amqp"}
FILES = sorted(PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))
ROOT = PACKAGE.parent
HOUSE = ("tests", "examples", "benchmarks", "docs")
EVERYTHING = [*FILES, *LUA, *(path for folder in HOUSE for path in sorted((ROOT / folder).rglob("*.py")))]


def imports(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, wherever it does."""
    found: set[str] = set()
    here = ("celery_lowkiq", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            stem = ".".join((*base, node.module) if node.module else base)
            found.add(stem)
            if not node.module:
                found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_below(path):
    floor = path.relative_to(PACKAGE).parts[0]
    found = imports(path)
    ours = {name.split(".")[1] for name in found if name.startswith("celery_lowkiq.")}
    others = {name.split(".")[0] for name in found} - {"celery_lowkiq"}
    if floor in BELOW:
        assert ours <= BELOW[floor]
        assert "celery_lowkiq" not in found
    if floor == "rules":
        assert others <= sys.stdlib_module_names
    if floor != "store":
        assert "redis" not in others
    if floor in ("rules", "store", "worker"):
        assert not others & CELERY_FAMILY


def test_the_layer_test_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "worker").mkdir()
    module = tmp_path / "worker" / "bad.py"
    module.write_text(
        "import redis.client\nfrom ..store import keys\ndef f():\n    from celery import Celery\n"
    )
    assert imports(module) == {"redis.client", "celery_lowkiq.store", "celery"}


@pytest.mark.parametrize("path", EVERYTHING, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_stay_small(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", [p for p in LUA if p.parent.name != "lib"], ids=lambda path: path.stem)
def test_every_script_has_a_header(path):
    header = re.match(r"(?:--.*\n)*", path.read_text()).group()
    for field in ("KEYS", "ARGV", "USES", "Returns", "Cost"):
        assert re.search(rf"^-- {field}:", header, re.MULTILINE), f"{path.name} has no {field}"


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_no_script_uses_what_some_server_lacks(path):
    code = re.sub(r"--.*", "", path.read_text())
    for word in ("cmsgpack", "FCALL", "FUNCTION", "SPUBLISH", "'KEYS'", "struct.", "bit.", "tostring("):
        assert word not in code


def test_only_keys_py_spells_a_key():
    for path in FILES + LUA:
        if path.name != "keys.py":
            assert "lowkiq:" not in path.read_text(), path
