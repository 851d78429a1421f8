"""What the Lua files declare, and what they use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_lowkiq.store import script as scripts
from celery_lowkiq.store.client import _clocked
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from tests.store.helpers import SHARD

NAMES = sorted(name.removesuffix(".lua") for name in scripts.lua_files())
SCRIPTS = [name for name in NAMES if not name.startswith("lib/")]


def source(name):
    return scripts.lua_files()[f"{name}.lua"].read_text("utf-8")


def test_a_script_declares_the_keys_of_its_libraries():
    missing = {
        f"{name} uses {library}: {key}"
        for name in SCRIPTS
        for library in scripts.libraries(source(name))
        for key in scripts.declared_keys(scripts.library(library))
        if key.rstrip("?") not in scripts.load(name).keys
    }
    assert missing == set()


def test_a_script_declares_the_arguments_of_its_libraries():
    missing = {
        f"{name} uses {library}: {argument}"
        for name in SCRIPTS
        for library in scripts.libraries(source(name))
        for argument in scripts.header(scripts.library(library), "ARGV").split()
        if argument not in scripts.load(name).args
    }
    assert missing == set()


def test_each_part_of_a_library_is_used():
    used = {part for name in SCRIPTS for part in scripts.libraries(source(name))} | {"time.test"}
    written = {
        f"{file.removeprefix('lib/')}.{part}".rstrip(".")
        for file in NAMES
        if file.startswith("lib/")
        for part, text in scripts._parts_of_library(source(file)).items()
        if re.sub(r"--.*|\s", "", text)
    }
    assert written == used


#: Beside the library: a repair reads where a job lies from keys that contradict each other.
MAY_WRITE_INDEX = {"lib/migration", "lib/waiting", "repair_waiting"}
INDEX_KEYS = "due|due_prioritized|by_priority|due_paused|moving"


def test_only_libraries_place_waiting_jobs():
    found = {n for n in NAMES if re.search(rf"'Z(ADD|REM|M?SCORE)', ({INDEX_KEYS})\b", source(n))}
    assert found == MAY_WRITE_INDEX


def test_only_scripts_of_migrations_always_look_into_moving():
    """Others look whether a migration goes on, and pay for the index only then."""
    found = {name for name in SCRIPTS if "migration.moving" in scripts.libraries(source(name))}
    assert found == {"export", "fence", "hold", "import_jobs", "relay", "stay"}


def test_every_script_is_loaded_by_the_store():
    texts = "".join(path.read_text() for path in Path(scripts.__file__).parent.glob("*.py"))
    assert {
        name
        for name in SCRIPTS
        if not re.search(rf'(load|owned|_steps|_move|_switch|call|release)\((client,)?\s*"{name}"', texts)
    } == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_all(name):
    for field in ("KEYS", "ARGV", "USES", "Returns", "Cost"):
        assert f"\n-- {field}:" in source(name)


@pytest.mark.parametrize("arguments", [{}, {"limit": 0, "unknown": 1}])
def test_a_call_with_other_arguments_than_the_header_has_is_refused(arguments):
    with pytest.raises(TypeError, match=r"run_now.lua takes .*limit.*got"):
        scripts.load("run_now").call(shard_keys(SHARD), **arguments)


def assembled(monkeypatch, text):
    read = scripts._read
    monkeypatch.setattr(scripts, "_read", lambda name: text if name == "push.lua" else read(name))
    return scripts.load.__wrapped__("push").body


def test_a_part_of_a_script_brings_its_libraries_and_touches_its_keys(monkeypatch):
    text = """-- KEYS: meta? due jobs failed
-- USES: meta.format
local length = redis.call('HLEN', jobs) -- not failed
if length == 0 then
  return 0
end
-- USES: meta.format waiting.wake
redis.call('ZREM', failed, 'x')
"""
    body = assembled(monkeypatch, text)
    first, _, second = body.partition("-- KEYS: meta?")
    assert "redis.call('HLEN', jobs)\n" in first
    assert "function refuse_format" in first
    assert "due)\n" not in first
    assert "redis.call('ZCARD', due)\nredis.call('ZCARD', failed)\n-- The index" in second
    assert second.index("return 0") < second.index("function wake") < second.index("'ZREM', failed")
    assert body.count("function refuse_format") == 1
    assert body.count("redis.call('HLEN', jobs)\n") == 1


def test_a_script_of_one_part_touches_all_keys_first(monkeypatch):
    text = "-- KEYS: meta? due jobs\n-- USES: meta.format\nreturn 1\n"
    body = assembled(monkeypatch, text)
    probes = "redis.call('ZCARD', due)\nredis.call('HLEN', jobs)\n"
    assert body == f"local meta, due, jobs = KEYS[1], KEYS[2], KEYS[3]\nlocal rest = 1\n{probes}" + (
        scripts.library("meta.format") + text
    )


def test_keys_of_a_script_are_bound_once():
    keys, script = shard_keys(SHARD), scripts.load("next_due")
    first, second = (script.call(keys, open="any").keys for _ in range(2))
    assert first is second
    assert first == tuple(keys[name] for name in script.keys)
    assert set(script.keys) <= set(SHARD_KEYS)


#: Maximum number of local variables of a script at once. Lua allows 200; the others are room for changes.
MOST_LOCALS = dict.fromkeys(SCRIPTS, 170) | {"claim": 150}


def test_a_script_leaves_room_for_local_variables(client):
    """It compiles behind as many others as there is room for."""
    for name in SCRIPTS:
        client.script_load("local _\n" * (200 - MOST_LOCALS[name]) + scripts.load(name).body)


def test_each_script_compiles_with_the_local_variables_of_a_tests_clock(client):
    """Lua allows 200 in a function: a script that has as many runs in no test that moves the clock."""
    for name in SCRIPTS:
        client.script_load(_clocked(scripts.load(name)).body)
