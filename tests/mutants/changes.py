"""Every small change that can be made to a module, as text with its place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_lowkiq"
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}


@dataclass(frozen=True)
class Change:
    """Another text in place of a node's."""

    path: Path
    line: int
    last_line: int
    #: Byte offsets in the first and in the last line.
    column: int
    last_column: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The module with the change."""
        lines = source.splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.last_line - 1][self.last_column :] + b"".join(lines[self.last_line :])
        return before + self.text.encode() + after

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}:{self.column}: {self._words}"

    @property
    def is_equivalent(self) -> bool:
        """Whether the list says that no test can notice it."""
        prefix = f"{self.path.relative_to(ROOT)}: "
        of_file = [line for line in equivalent() if line.startswith(prefix)]
        return any(line.startswith(f"{prefix}{self._words}: ") for line in of_file)

    @property
    def _words(self) -> str:
        old = self.path.read_text().splitlines()[self.line - 1].strip()
        return f"{old}  ->  {self.text}"


@cache
def equivalent() -> list[str]:
    """Mutants that are the same program, each with the reason."""
    lines = Path(__file__).with_name("equivalent.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def changes_of(path: Path) -> list[Change]:
    """All of one module. Strings, types and decorators stay, and ``zip(strict=True)``, which refuses what
    never comes.
    """
    return [change for node in _nodes(ast.parse(path.read_bytes())) for change in _changes(path, node)]


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
        return
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias"):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _changes(path: Path, node: Any) -> Iterator[Change]:
    for other in _others(node):
        yield Change(
            path,
            node.lineno,
            node.end_lineno,
            node.col_offset,
            node.end_col_offset,
            other,
        )


def _others(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                ops = [*operators[:at], OPPOSITES[type(operator)](), *operators[at + 1 :]]
                yield f"({_unparsed(node, ops=ops)})"
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OPPOSITES:
            yield f"({_unparsed(node, op=OPPOSITES[type(operator)]())})"
        case ast.AugAssign(op=operator) if type(operator) in OPPOSITES:
            yield _unparsed(node, op=OPPOSITES[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield f"(+{ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield repr(value + 1)
        case ast.Break() | ast.Continue():
            yield ast.unparse(OPPOSITES[type(node)]())
        case ast.Return(value=ast.expr() as returned) if ast.unparse(returned) != "None":
            yield "return None"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete():
            yield "pass"


def _unparsed(node: ast.AST, **fields: Any) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)
