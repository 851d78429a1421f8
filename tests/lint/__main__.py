"""``python -m tests.lint``: exit status 1 when a check finds something that is not allowed."""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

from grimp import build_graph

from celery_lowkiq.store.acl import RoleName
from celery_lowkiq.store.script import load, script_names
from tests.lint.duplicates import Pair, duplicates
from tests.lint.lua_globals import undefined

ROOT = Path(__file__).parents[2]
CODE = ("celery_lowkiq", "tests", "examples", "benchmarks")
ENDINGS = {".py", ".lua", ".html", ".js", ".css"}
#: A line for each allowed pair of files, with the reason.
ALLOWED = Path(__file__).parent / "allowed_duplicates.txt"
#: First words of docstrings that name nothing.
NAMELESS = {"What", "Which", "Those", "That", "As", "Of", "Whether", "If"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Globals of library functions that the script does not call.
ALLOWED_GLOBALS = {
    "gauge": {"pack_items"},
    "track_progress": {"channel"},
}


def main() -> int:
    """All checks."""
    faults = [*_globals(), *_roles(), *_duplicates(), *_circles(), *_first_words()]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _globals() -> list[str]:
    faults = []
    for name in sorted(script_names()):
        script = load(name)
        lines = script.body.splitlines()
        found = undefined(script.body.encode())
        allowed = ALLOWED_GLOBALS.get(script.name, set())
        faults += [
            f"{name}.lua is allowed {unused!r}" for unused in allowed - {access.name for access in found}
        ]
        for access in found:
            if access.name in allowed and not access.writes:
                continue
            what = "writes" if access.writes else "reads"
            faults.append(f"{name}.lua {what} the global {access.name!r}: {lines[access.line - 1].strip()}")
    return faults


def _roles() -> list[str]:
    roles = {*get_args(RoleName)}
    wrong = (name for name in script_names() if not load(name).roles or {*load(name).roles} - roles)
    return [
        f"{name}.lua: ROLE is invalid: expected some of {', '.join(sorted(roles))}" for name in sorted(wrong)
    ]


def _duplicates() -> list[str]:
    lines = [line for line in ALLOWED.read_text().splitlines() if not line.startswith("#")]
    allowed = {line.partition(":")[0] for line in lines}
    files = (path for folder in CODE for path in sorted((ROOT / folder).rglob("*")))
    pairs = [_relative(pair) for pair in duplicates(path for path in files if path.suffix in ENDINGS)]
    used = {_files(pair) for pair in pairs}
    faults = [f"the same lines twice: {pair}" for pair in pairs if _files(pair) not in allowed]
    return faults + [f"{ALLOWED.name} allows what is not there: {names}" for names in sorted(allowed - used)]


def _circles() -> list[str]:
    """Imports inside functions and for types only count, too."""
    graph = build_graph("celery_lowkiq", cache_dir=None)
    try:
        TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()
    except CycleError as error:
        return [f"modules import each other: {' <- '.join(error.args[1])}"]
    return []


def _first_words() -> list[str]:
    """A docstring names the thing first, then says what it does."""
    faults = []
    for path in sorted((ROOT / "celery_lowkiq").rglob("*.py")):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, DOCUMENTED)]
        words = [(ast.get_docstring(node) or "-").split()[0].strip(",:") for node in nodes]
        wrong = [word for word in words if word in NAMELESS]
        faults += [f"{path.relative_to(ROOT)}: a docstring begins with {word!r}" for word in wrong]
    return faults


def _relative(pair: Pair) -> Pair:
    (first, begin, end), (second, other_begin, other_end) = pair
    return Pair((first.relative_to(ROOT), begin, end), (second.relative_to(ROOT), other_begin, other_end))


def _files(pair: Pair) -> str:
    return f"{pair.first[0]} ~ {pair.second[0]}"


if __name__ == "__main__":
    sys.exit(main())
