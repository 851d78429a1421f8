"""Commands in the documentation exist, with the options that are given there."""

from __future__ import annotations

import re
from pathlib import Path

import click

from celery_lowkiq.cli.main import lowkiq

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: As it begins in the shell, or within a sentence.
COMMAND = re.compile(r"(?:\bcelery -A \w+ |`)lowkiq ([a-z][a-z-]*)([^#`\n|]*)")


def commands(page: Path) -> list[tuple[str, str]]:
    """Name and arguments of each ``lowkiq`` command in the blocks and sentences of a page."""
    text = page.read_text().replace("\\\n", " ")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return COMMAND.findall("".join(BLOCK.findall(text))) + COMMAND.findall(prose)


def test_commands_of_code_blocks_exist_with_their_options():
    context = click.Context(lowkiq)
    seen = 0
    for page in PAGES:
        for name, arguments in commands(page):
            command = lowkiq.get_command(context, name)
            assert command is not None, f"{page.name}: there is no lowkiq {name}"
            known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
            given = set(re.findall(r"(?<=\s)(--[a-z-]+)", arguments))
            passed_on = command.context_settings.get("ignore_unknown_options", False)  # to Flower
            assert passed_on or given <= known | {"--help"}, f"{page.name}: lowkiq {name}{arguments}"
            seen += 1
    assert seen > 50
