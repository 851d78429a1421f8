"""docs/celery-patches.md names tests that exist, and each file of the package that patches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_lowkiq"
TEXT = (ROOT / "docs" / "celery-patches.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT)))
FILES = set(re.findall(r"`((?:integration|store|worker|flower)/[\w/]+\.py)`", TEXT))
#: What a patch looks like. The dev command's own handlers, and those of the embedded server, are no patches.
PATCH = re.compile(
    r"__bases__ =|HIDDEN_SETTINGS|Panel\.data\[|register_at_fork|logging\.NullHandler|in sys\.modules"
    r"|_create_task_sender =|startup_info =|update_strategies =|wait_for_soft_shutdown =|urls\.handlers\["
    r"|addFilter\(|install_cry_handler\(|__code__|\.tref =|_task_stack"
    r"|push_current_task|_to_keys\(|__reduce_args__|c_make_encoder|send_packed_command"
)


@pytest.mark.parametrize("name", TESTS)
def test_the_tests_exist(name):
    path, *_, test = name.split("::")
    assert re.search(rf"def {test}\(", (ROOT / path).read_text())


def test_each_patch_is_on_the_page():
    patching = {
        path.relative_to(PACKAGE).as_posix()
        for folder in ("integration", "store", "worker", "flower")
        for path in (PACKAGE / folder).rglob("*.py")
        if PATCH.search(path.read_text())
    }
    assert len(patching) > 10
    assert patching <= FILES
