"""The features with the users of `lowkiq acl`: callers, workers and operators have what they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles import servers

HERE = Path(__file__).parents[2]
#: Calls, actions, trackers and calls by name; `nox -s roles` runs all.
PATHS = [f"tests/features/test_{name}.py" for name in ("in_place", "holds", "tracking")]
PATHS += ["tests/worker/test_by_name.py"]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("server", "prefix"), [*((server, "") for server in servers()), (servers()[-1], "[stage]*:")]
)
def test_everybody_has_the_rights_that_features_need(server, prefix):
    """With a prefix, Redis would deny a key or a channel without it."""
    env = {**os.environ, "LOWKIQ_TEST_ROLES": "1", "LOWKIQ_TEST_SERVER": str(server)}
    env["LOWKIQ_TEST_PREFIX"] = prefix
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full", *PATHS]
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
