"""Mutants are other programs, and each is one small change."""

from __future__ import annotations

import ast

import pytest

from .__main__ import FOLDERS, ROOT
from .changes import changes_of
from .covering import test_id as id_of


@pytest.fixture
def mutants(tmp_path):
    def mutants(text):
        path = tmp_path / "module.py"
        path.write_text(text)
        return [change.apply(path.read_bytes()).decode() for change in changes_of(path)]

    return mutants


@pytest.mark.parametrize(
    "text, changed",
    [
        ("a < b <= c", ["(a <= b <= c)", "(a < b < c)"]),
        ("a and not b", ["(a or not b)", "a and (b)"]),
        ("a += 1", ["a -= 1", "a += 2"]),
        ("f(-1, True)", ["pass", "f((+1), True)", "f(-2, True)", "f(-1, False)"]),
        ("def f(x: int = 1) -> None:\n    return x", ["def f(x: int = 2) -> None:\n    return x"]),
        ("'words'", []),
        ("for x in y:\n    break", ["for x in y:\n    continue"]),
        ("é = a is b; raise X", ["é = (a is not b); raise X", "é = a is b; pass"]),
    ],
)
def test_the_changes_of_a_module(mutants, text, changed):
    made = mutants(text)
    if text.startswith("def"):
        changed = [*changed, text.replace("return x", "return None")]
    assert sorted(made) == sorted(changed)


def test_types_and_protocols_stay(mutants):
    assert mutants("if TYPE_CHECKING:\n    a = 1\nclass P(Protocol):\n    a = 1\n") == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_mutants_of_the_package_are_other_programs(folder):
    for path in (ROOT / "celery_lowkiq" / folder).rglob("*.py"):
        source = path.read_bytes()
        before = ast.dump(ast.parse(source))
        for change in changes_of(path)[::20]:
            assert ast.dump(ast.parse(change.apply(source))) != before, change


def test_a_context_of_coverage_is_a_test_of_pytest():
    assert id_of(ROOT, "tests.unit.test_lane.TestX.test_y") == "tests/unit/test_lane.py::TestX::test_y"
    assert id_of(ROOT, "somewhere.else.test_y") is None
