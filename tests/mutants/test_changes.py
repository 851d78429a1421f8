"""Mutants are other programs, and each is one small change."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import FOLDERS, Results
from tests.mutants.changes import PACKAGE, ROOT, Change, changes_of, equivalent
from tests.mutants.trying import Outcome


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
    assert mutants("Value: TypeAlias = int | str\npairs = [*zip(a, b, strict=True)]") == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_mutants_of_the_package_are_other_programs(folder):
    for path in (PACKAGE / folder).rglob("*.py"):
        source = path.read_bytes()
        before = ast.dump(ast.parse(source))
        for change in changes_of(path)[::20]:
            assert ast.dump(ast.parse(change.apply(source))) != before, change


def test_an_equivalent_mutant_is_one_of_the_package():
    changes = [
        change
        for folder in FOLDERS
        for path in (PACKAGE / folder).rglob("*.py")
        for change in changes_of(path)
    ]
    assert sum(change.is_equivalent for change in changes) == len(equivalent())


def test_a_later_run_knows_the_results_of_an_earlier_one(tmp_path):
    change, survivor = (Change(ROOT / "noxfile.py", line, line, 0, 1, "x") for line in (1, 2))
    results = Results(tmp_path / "results")
    results.add(change, Outcome(True, "test_x"), 1.0)
    results.add(survivor, Outcome(False, "3 tests pass"), 2.0)

    later = Results(tmp_path / "results")
    assert later.of(change) == Outcome(True, "test_x")
    assert [later.has(one, killed_only) for one in (change, survivor) for killed_only in (False, True)] == [
        *(True, True),
        *(True, False),
    ]
