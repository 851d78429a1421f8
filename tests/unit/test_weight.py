"""What ``python -m tests.weight`` counts."""

from __future__ import annotations

import ast

from tests.weight import circles, statements


def test_statements_are_counted_without_imports_and_docstrings():
    source = '''
"""A module."""
import os

def act():
    """Act."""
    from os import path
    return 1

"text"
'''
    assert statements(ast.parse(source)) == 3


def test_a_circle_has_the_modules_that_import_each_other():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "e"}, "e": {"f"}, "f": {"g"}, "g": {"e"}}
    assert circles(graph) == [["b", "c"], ["e", "f", "g"]]
