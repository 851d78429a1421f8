"""``python -m tests.golden``: write all that users see anew, the golden files and the tables of the docs."""

from __future__ import annotations

import os
import sys

import pytest

from tests.docs import tables
from tests.golden.files import RENEW

KEPT = ["tests/golden", "tests/cli/test_commands.py::test_reads", "tests/cli/test_help.py"]

if __name__ == "__main__":
    for each in tables.TABLES:
        (tables.DOCS / each).write_text(tables.page(each))
    os.environ[RENEW] = "1"
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *KEPT]))
