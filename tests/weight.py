"""``python -m tests.weight``: how much code there is, and its circles of imports.

An argument is another checkout to weigh.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

PACKAGE = "celery_lowkiq"
Graph = dict[str, set[str]]


def main(root: Path) -> None:
    sources = {path: path.read_text() for path in sorted((root / PACKAGE).rglob("*.py"))}
    trees = {_module(path.relative_to(root)): ast.parse(text) for path, text in sources.items()}
    others = [path for path in (root / PACKAGE).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    lua = [path.read_text() for path in others if path.suffix == ".lua"]
    tests = [path.read_text() for path in sorted((root / "tests").rglob("*.py"))]
    packages = {_module(path.relative_to(root)) for path in sources if path.name == "__init__.py"}
    found = circles({name: _imported(name, tree, trees, packages) for name, tree in trees.items()})
    print(
        f"statements of the package, without imports and docstrings: {sum(map(statements, trees.values())):,}"
    )
    print(f"lines of Python: {_lines(sources.values()):,} in {len(sources)} files")
    print(f"lines of Lua: {_lines(lua):,} in {len(lua)} files")
    print(f"files of the package: {len(others)}")
    print(f"lines of tests: {_lines(tests):,} in {len(tests)} files")
    print(f"circles of imports, also in functions and for type checkers: {len(found)}")
    for circle in found:
        print(f"  {' <-> '.join(circle)}")


def _lines(texts: Iterable[str]) -> int:
    return sum(len(text.splitlines()) for text in texts)


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def statements(tree: ast.AST) -> int:
    """How many statements there are without imports and docstrings."""
    docs = {id(node.body[0]) for node in ast.walk(tree) if _has_docstring(node)}
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, (ast.Import, ast.ImportFrom))
        and id(node) not in docs
        for node in ast.walk(tree)
    )


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


# -- imports


def _imported(name: str, tree: ast.Module, trees: dict[str, ast.Module], packages: set[str]) -> set[str]:
    """The modules of the package that a module imports, also in functions and for type checkers."""
    package = name if name in packages else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                base = f"{above}.{base}".rstrip(".")
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in trees else base for a in node.names}
    return (found & trees.keys()) - {name}


def circles(graph: Graph) -> list[list[str]]:
    """Modules that import each other, directly or through others."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in names if name in reached[other]))
        for name, names in reached.items()
        if name in names
    }
    return [list(circle) for circle in sorted(found)]


def _reached(graph: Graph, start: str) -> set[str]:
    """All that is imported from ``start`` on; itself only if a circle leads back to it."""
    found: set[str] = set()
    left = list(graph[start])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += graph[name]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
