"""The mutants of the chaos tests still change something: what they replace is still there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

APPLY_ALL = """
from celery_lowkiq.store import script as scripts
from tests.chaos.mutants import MUTANTS, OF_HOLDS, OF_THE_STORE

read = scripts._read
texts = {name: read(name) for name in scripts.lua_files()}
for name, apply in {**{name: m.apply for name, m in MUTANTS.items()}, **OF_THE_STORE, **OF_HOLDS}.items():
    scripts._read = read
    apply()
    assert scripts._read is read or {name: scripts._read(name) for name in texts} != texts, name
    print(name)
"""


def test_every_mutant_can_be_applied():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", APPLY_ALL], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 15
