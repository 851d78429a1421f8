"""Nothing that users or their programs see changes unless a golden file does."""

from __future__ import annotations

import pytest

from tests.golden import declared
from tests.golden.files import golden
from tests.golden.scene import scene
from tests.golden.seen import SEEN


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All that one scene shows, by the name of its file."""
    with scene(tmp_path_factory.mktemp("golden")) as found:
        return {name: read(found) for name, read in SEEN.items()}


@pytest.mark.parametrize("name", SEEN)
def test_what_programs_read(seen, name):
    assert seen[name] == golden(name, seen[name])


@pytest.mark.parametrize(
    "name, text", [("log_lines.txt", declared.log_lines), ("public_names.txt", declared.public_names)]
)
def test_what_the_source_declares(name, text):
    found = text()
    assert found == golden(name, found)
