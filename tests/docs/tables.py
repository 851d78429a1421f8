"""The tables of settings, options and endpoints in the docs; ``python -m tests.docs.tables`` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from celery_lowkiq.integration.options import OPTIONS
from celery_lowkiq.integration.settings import SETTINGS
from celery_lowkiq.rules.validators import Option
from celery_lowkiq.web.app import ENDPOINTS
from celery_lowkiq.web.endpoints import BASE, Endpoint

DOCS = Path(__file__).parents[2] / "docs"
Row = tuple[str, ...]


def _option_rows(kind: str, prefix: str, options: dict[str, Option]) -> list[Row]:
    rows: list[Row] = [(kind, "default", "value", "meaning")]
    for name, option in options.items():
        default = option.default_words or f"`{_quoted(repr(option.default))}`"
        value = re.sub(r"'[^' ]+'", lambda text: f"`{_quoted(text[0])}`", option.valid.expected)
        rows.append((f"`{prefix}{name}`", default, value, option.help))
    return rows


def _endpoint_rows(endpoints: Iterable[Endpoint]) -> list[Row]:
    rows: list[Row] = [("endpoint", "parameters", "result")]
    for one in endpoints:
        parameters = " ".join(query.name if query.required else f"[{query.name}]" for query in one.query)
        rows.append((f"`{one.method} {BASE}{one.path}`", parameters and f"`{parameters}`", one.text))
    return rows


def _quoted(text: str) -> str:
    return re.sub(r"'([^']*)'", r'"\1"', text)


#: The rows of the table of each page, its head first.
TABLES: dict[str, list[Row]] = {
    "settings.md": _option_rows("setting", "lowkiq_", SETTINGS),
    "task-options.md": _option_rows("option", "", OPTIONS),
    "dashboard.md": _endpoint_rows(ENDPOINTS),
}


def page(name: str) -> str:
    """The page as its declarations have it."""
    head, *rows = TABLES[name]
    first, *others = (f"| {' | '.join(row)} |\n" for row in (head, *rows))
    table = "".join([first, "|---" * len(head) + "|\n", *others, "\n"])
    pattern = rf"(?<=\n)\| {head[0]} \|.*?\n\n"
    return re.sub(pattern, lambda _: table, (DOCS / name).read_text(), flags=re.DOTALL)


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page(each))
