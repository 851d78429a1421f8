"""``--help`` of each command: as the reference in the docs has it."""

from __future__ import annotations

import os
import re
from importlib.metadata import entry_points

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner

from celery_lowkiq.cli.main import lowkiq
from tests.golden.files import RENEW
from tests.processes import ROOT

NAMES = lowkiq.list_commands(None)
PAGE = ROOT / "docs" / "command-line.md"


def help_of(*words):
    """In the width of a page."""
    found = CliRunner().invoke(celery, ["lowkiq", *words, "--help"], prog_name="celery", terminal_width=100)
    assert found.exit_code == 0, found.output
    return found.output


def test_celery_finds_the_command_by_its_entry_point():
    (found,) = [point for point in entry_points(group="celery.commands") if point.name == "lowkiq"]
    assert found.load() is lowkiq
    assert celery.commands["lowkiq"] is lowkiq


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples(name):
    assert f" celery -A proj lowkiq {name}" in help_of(name).partition("Examples:")[2]


def test_the_reference_has_the_list_of_commands_and_the_help_of_each():
    parts = [f"```text\n{help_of()}```\n"]
    parts += [f"## `{name}`\n\n```text\n{help_of(name)}```\n" for name in NAMES]
    blocks = "\n".join(parts)
    head, mark, found = PAGE.read_text().partition("<!-- what --help says -->\n\n")
    if os.environ.get(RENEW):
        PAGE.write_text(f"{head}{mark}{blocks}")
        found = blocks
    assert mark
    assert found == blocks


def test_examples_name_commands_and_options_that_exist():
    for name in NAMES:
        known = {option for param in lowkiq.get_command(None, name).params for option in param.opts}
        for line in re.findall(r" celery -A proj lowkiq (.*)$", help_of(name), re.MULTILINE):
            assert set(re.findall(r"(?<= )--[\w-]+", line)) <= known, line
