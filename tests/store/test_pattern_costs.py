"""A script takes linear time, whatever is stored: Redis serves nobody meanwhile.

Two runs beside each other that can split a text in many ways take quadratic time: ``%f`` ends the first one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.store.script import lua_files

CALL = re.compile(r"string\.(?:match|find|gmatch|gsub)\(")
LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'")
#: A text that is copied to grow, and a list whose items all move.
GROWING = re.compile(r"([\w.\[\]]+)(?:, \w+)? = \1 \.\. |table\.(?:insert\(\w+, 1, |remove\(\w+, 1\))")
#: Once for a job.
ONCE = {
    "lib/processing.lua: first = first .. ",
    "lib/payloads.lua: flag = flag .. ",
    "lib/crashes.lua: table.remove(items, 1)",
    "settle.lua: table.remove(items, 1)",
}
#: CPU seconds: of a linear pattern, a text takes about 0.0001, and all of a head 0.004; of a quadratic one, a
#: text takes 0.02 or more.
MOST = 0.005
#: How often the server may have been held up while it ran a pattern.
ATTEMPTS = 3
#: Beginnings of records, runs of one character, and ends that match nothing.
HEADS = ["", "1 ", "1 1 ", "1 1 1 ", "1 1 1 1 ", "1@", "1#1 x ", "-", "1.", "!1 ", "~", "a=", "R"]
RUNS = "9aR .-@|\t\n"
ENDS = ["", "\1", "\0\1", " \1", "\n\1"]
#: A head, the character of a run, and an end.
Text = tuple[str, str, str]
REPLACE = r"""
for n = 2, #ARGV, 3 do
  string.gsub(ARGV[n] .. string.rep(ARGV[n + 1], 3000) .. ARGV[n + 2], ARGV[1], '')
end
"""


def patterns() -> list[str]:
    lines = [line for file in lua_files().values() for line in file.read_text("utf-8").splitlines()]
    found = {text for line in lines if CALL.search(line) for text in LITERAL.findall(line)}
    return sorted(text for text in found if set(text) & set("+*"))


def seconds(server: redis.Redis, pattern: str, texts: list[Text]) -> float:
    """The CPU time of the server for a pattern: scripts of Redis 7.0 have no clock of the processor."""
    pipe = server.pipeline(transaction=False)
    pipe.info("cpu")
    pipe.eval(REPLACE, 0, pattern.replace("\\n", "\n").replace("\\t", "\t"), *itertools.chain(*texts))
    pipe.info("cpu")
    began, _, ended = pipe.execute()
    return sum(ended[name] - began[name] for name in ("used_cpu_user", "used_cpu_sys"))


def slow_text(server: redis.Redis, pattern: str) -> Text | None:
    """A text for which the pattern takes long each time."""
    for head in HEADS:
        texts = list(itertools.product([head], RUNS, ENDS))
        if seconds(server, pattern, texts) > MOST:
            for text in texts:
                if all(seconds(server, pattern, [text]) > MOST for _ in range(ATTEMPTS)):
                    return text
    return None


@pytest.fixture
def server(empty_redis: EmbeddedServer) -> Iterator[redis.Redis]:
    # A quadratic pattern may take longer than redis-py waits by default, on a busy machine.
    with redis.Redis(unix_socket_path=empty_redis.socket_path, socket_timeout=60) as client:
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
