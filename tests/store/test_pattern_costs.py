"""A script takes linear time, whatever is stored: Redis serves nobody meanwhile.

Two runs beside each other that can split a text in many ways take quadratic time: ``%f`` ends the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.store.scripts.script import lua_files

CALL = re.compile(r"string\.(?:match|find|gmatch|gsub)\(")
LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'")
#: A text that is copied to grow, and a list whose items all move.
GROWING = re.compile(r"([\w.\[\]]+)(?:, \w+)? = \1 \.\. |table\.(?:insert\(\w+, 1, |remove\(\w+, 1\))")
#: Once for a job.
ONCE = {
    "lib/processing.lua: first = first .. ",
    "lib/payload_set.lua: flag = flag .. ",
    "lib/crashes.lua: table.remove(items, 1)",
    "settle.lua: table.remove(items, 1)",
}
#: CPU seconds for 3,000 characters: a linear pattern takes about 0.00003, a quadratic one 0.03 or more.
MOST = 0.008
#: Beginnings of records, runs of one character, and ends that match nothing.
MEASURE = r"""
local heads = {'', '1 ', '1 1 ', '1 1 1 ', '1 1 1 1 ', '1@', '1#1 x ', '-', '1.', '!1 ', '~', 'a=', 'R'}
local ends = {'', '\1', '\0\1', ' \1', '\n\1'}

local function seconds(text)
  local began = os.clock()
  string.gsub(text, ARGV[1], '')
  return os.clock() - began
end

for _, head in ipairs(heads) do
  for char in string.gmatch('9aR .-@|\t\n', '.') do
    for _, ending in ipairs(ends) do
      local text = head .. string.rep(char, 3000) .. ending
      if seconds(text) > tonumber(ARGV[2]) and seconds(text) > tonumber(ARGV[2]) then
        return head .. char .. '...' .. ending
      end
    end
  end
end
"""


def patterns() -> list[str]:
    lines = [line for file in lua_files().values() for line in file.read_text("utf-8").splitlines()]
    found = {text for line in lines if CALL.search(line) for text in LITERAL.findall(line)}
    return sorted(text for text in found if set(text) & set("+*"))


def slow_text(server: redis.Redis, pattern: str) -> bytes | None:
    """A text for which the pattern takes long."""
    return server.eval(MEASURE, 0, pattern.replace("\\n", "\n").replace("\\t", "\t"), MOST)


@pytest.fixture
def server(empty_redis: EmbeddedServer) -> Iterator[redis.Redis]:
    """The server at hand: scripts of 6.2 have no clock of the processor."""
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        yield client


@pytest.mark.parametrize("pattern", patterns())
def test_a_pattern_takes_linear_time(server, pattern):
    assert slow_text(server, pattern) is None


@pytest.mark.parametrize("pattern", [r"^(%d+)@?%d* ", r"%d+$", r"([^\t\n]*)\t$", r"^([^s%z]*)(s?)([^%z]*)$"])
def test_a_quadratic_pattern_is_found(server, pattern):
    assert slow_text(server, pattern)


def test_no_script_copies_a_text_or_moves_a_list_in_a_loop():
    found = {
        f"{name}: {hit[0]}"
        for name, file in lua_files().items()
        for hit in GROWING.finditer(file.read_text("utf-8"))
    }
    assert found == ONCE
