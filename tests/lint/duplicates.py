"""Runs of six lines that stand in two places, not counting comments, imports, blank lines and brackets."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LINES = 6
SKIPPED = re.compile(r"(#|--|//|\{#|from \S+ import|import |[\W_]*$|(else|try|finally|end)\b\W*$)")


class Line(NamedTuple):
    """A line that counts."""

    path: Path
    number: int
    text: str


class Pair(NamedTuple):
    """Two places with the same lines; the first and the last line of each."""

    first: tuple[Path, int, int]
    second: tuple[Path, int, int]

    def __str__(self) -> str:
        return " ~ ".join(f"{path}:{begin}-{end}" for path, begin, end in self)


def duplicates(paths: Iterable[Path]) -> list[Pair]:
    """All pairs, longest runs only, in the order of the files."""
    files = [_lines(path) for path in paths]
    places: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for file, lines in enumerate(files):
        for at in range(len(lines) - LINES + 1):
            places[tuple(line.text for line in lines[at : at + LINES])].append((file, at))
    found: dict[tuple[int, int, int, int], Pair] = {}
    for same in places.values():
        for one, (file, at) in enumerate(same):
            for other_file, other_at in same[one + 1 :]:
                pair = _longest(files[file], at, files[other_file], other_at)
                if pair is not None:
                    found[(file, at, other_file, other_at)] = pair
    return list(found.values())


def _longest(first: list[Line], at: int, second: list[Line], other_at: int) -> Pair | None:
    """The run that begins there; None when a longer one has it, or it overlaps itself."""
    if at and other_at and first[at - 1].text == second[other_at - 1].text:
        return None
    length = 0
    while (
        at + length < len(first)
        and other_at + length < len(second)
        and first[at + length].text == second[other_at + length].text
    ):
        length += 1
    if first is second and other_at < at + length:
        return None
    return Pair(_span(first[at : at + length]), _span(second[other_at : other_at + length]))


def _span(lines: list[Line]) -> tuple[Path, int, int]:
    return lines[0].path, lines[0].number, lines[-1].number


def _lines(path: Path) -> list[Line]:
    text = path.read_text()
    imports = _lines_of_imports(text) if path.suffix == ".py" else set()
    numbered = enumerate((line.strip() for line in text.splitlines()), 1)
    return [
        Line(path, number, line)
        for number, line in numbered
        if number not in imports and not SKIPPED.match(line)
    ]


def _lines_of_imports(text: str) -> set[int]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
