"""The checks of ``python -m tests.lint`` find what they are for."""

from __future__ import annotations

import pytest
from lupa import lua51

from tests.lint.duplicates import duplicates
from tests.lint.lua_globals import Access, undefined

LINES = "".join(f"line {n}\n" for n in range(6))


@pytest.mark.parametrize(
    "text, found",
    [
        ("local a = 1\nreturn redis.call('GET', KEYS[a])", []),
        ("local a = 1\nreturn b", [Access(2, "b", False)]),
        ("a = 1", [Access(1, "a", True)]),
        ("function f() end", [Access(1, "f", True)]),
        ("local function f(x)\n  return x.y, function() return x, z end\nend", [Access(2, "z", False)]),
        (
            "if false then\n  local late\n  local function f() return late end\nend\nlate()",
            [Access(5, "late", False)],
        ),
    ],
)
def test_undefined_globals_are_found(text, found):
    assert undefined(text.encode()) == found


def test_a_chunk_with_a_syntax_error_is_no_clean_one():
    with pytest.raises(lua51.LuaError):
        undefined(b"local = 1")


@pytest.fixture
def pairs(tmp_path):
    def pairs(**files):
        paths = []
        for name, text in files.items():
            paths.append(tmp_path / f"{name}.lua")
            paths[-1].write_text(text)
        return [str(pair).replace(f"{tmp_path}/", "") for pair in duplicates(paths)]

    return pairs


def test_the_same_six_lines_in_two_files_are_found_once(pairs):
    found = pairs(a=f"first\n{LINES}-- why\nline 6\n", b=f"other\nb\n\n{LINES}line 6\nlast\n")
    assert found == ["a.lua:2-9 ~ b.lua:4-10"]


def test_the_same_six_lines_in_one_file_are_found(pairs):
    assert pairs(a=f"{LINES}between\n{LINES}") == ["a.lua:1-6 ~ a.lua:8-13"]


def test_five_lines_and_brackets_are_not(pairs):
    five = LINES[len("line 0\n") :]
    assert pairs(a=f"{five})\n}}\n", b=f"{five})\n}}\n") == []
