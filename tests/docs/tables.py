"""The tables of settings and options, made from the declarations by ``python -m tests.docs.tables``."""

from __future__ import annotations

import re
from pathlib import Path

from celery_lowkiq.integration.app.settings import SETTINGS
from celery_lowkiq.integration.task.options import OPTIONS
from celery_lowkiq.rules.validators import Option

DOCS = Path(__file__).parents[2] / "docs"
#: Prefix of the names in a page's table, and what it lists.
TABLES: dict[str, tuple[str, dict[str, Option]]] = {
    "settings.md": ("lowkiq_", SETTINGS),
    "task-options.md": ("", OPTIONS),
}


def page(name: str) -> str:
    """The page as its declarations have it."""
    return re.sub(
        r"(?<=\n)\| (setting|option) \|.*?\n\n",
        lambda found: _table(found[1], *TABLES[name]) + "\n",
        (DOCS / name).read_text(),
        flags=re.DOTALL,
    )


def _table(kind: str, prefix: str, options: dict[str, Option]) -> str:
    rows = [(kind, "default", "value", "meaning"), ("---",) * 4]
    for name, option in options.items():
        default = option.default_words or f"`{_quoted(repr(option.default))}`"
        value = re.sub(r"'[^' ]+'", lambda text: f"`{_quoted(text[0])}`", option.valid.expected)
        rows.append((f"`{prefix}{name}`", default, value, option.help))
    return "".join(
        f"| {' | '.join(row)} |\n".replace("| --- ", "|---").replace("--- |", "---|") for row in rows
    )


def _quoted(text: str) -> str:
    return re.sub(r"'([^']*)'", r'"\1"', text)


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page(each))
