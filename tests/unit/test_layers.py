"""A module imports only from the floors below (DESIGN section 6), and the house stays small."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

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
SCRIPTS = [path for path in LUA if "lib" not in path.parts]
ROOT = PACKAGE.parent


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


def upward(path: Path) -> set[str]:
    """Names that a module of the package may not import."""
    floor = path.relative_to(PACKAGE).parts[0]
    found = imports(path)
    ours = {name.split(".")[1] for name in found if name.startswith("celery_lowkiq.")}
    others = {name.split(".")[0] for name in found} - {"celery_lowkiq"}
    wrong: set[str] = set()
    if floor in BELOW:
        wrong |= (ours - BELOW[floor]) | (found & {"celery_lowkiq"})
    if floor == "rules":
        wrong |= others - sys.stdlib_module_names
    if floor != "store":
        wrong |= others & {"redis"}
    if floor in ("rules", "store", "worker"):
        wrong |= others & CELERY_FAMILY
    return wrong


def test_a_module_imports_only_from_below():
    wrong = {str(path.relative_to(PACKAGE)): names for path in FILES if (names := upward(path))}
    assert not wrong


def test_the_layer_test_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "worker").mkdir()
    module = tmp_path / "worker" / "bad.py"
    module.write_text(
        "import redis.client\nfrom ..store import keys\ndef f():\n    from celery import Celery\n"
    )
    assert imports(module) == {"redis.client", "celery_lowkiq.store", "celery"}
    assert upward(module) == {"redis", "store", "celery"}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file, and the lines of its body."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name, (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_stay_small():
    sizes = {
        f"{path.relative_to(PACKAGE)}:{name}": lines for path in FILES for name, lines in functions(path)
    }
    assert not {name: lines for name, lines in sizes.items() if lines > 40}


def test_every_script_has_a_header():
    missing = []
    for path in SCRIPTS:
        header = re.match(r"(?:--.*\n)*", path.read_text()).group()
        fields = ("KEYS", "ARGV", "USES", "Returns", "Cost")
        missing += [
            f"{path.name} has no {field}"
            for field in fields
            if not re.search(rf"^-- {field}:", header, re.MULTILINE)
        ]
    assert SCRIPTS
    assert not missing


def test_no_script_uses_what_some_server_lacks():
    words = ("cmsgpack", "FCALL", "FUNCTION", "SPUBLISH", "'KEYS'", "struct.", "bit.", "tostring(")
    code = {path: re.sub(r"--.*", "", path.read_text()) for path in LUA}
    assert not [f"{path.name} uses {word}" for path in LUA for word in words if word in code[path]]


def test_only_keys_py_spells_a_key():
    # "lowkiq: Lowkiq" is an annotation.
    spelling = [path.name for path in FILES + LUA if re.search("lowkiq:(?! )", path.read_text())]
    assert spelling == ["keys.py"]
