"""The golden files, and how what differs from run to run is left out of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Set to write the golden files, and the blocks of docs/command-line.md, anew.
RENEW = "LOWKIQ_RENEW_GOLDEN"
#: Columns of a record that stands in one line.
WIDTH = 110

SPAN = r"[\d.]+ (d|h|min|s)( \d+ (h|min|s))?"
#: What differs from run to run in texts: times of today, spans from now, places, versions.
CHANGING = [
    (r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "YYYY-MM-DDThh:mm:ssZ"),
    (r"\b[12]\d{9}\.\d+\b", "1700000000.5"),
    (r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", "YYYY-MM-DD hh:mm:ss UTC"),
    (rf"\bin {SPAN}", "in <span>"),
    (rf"\b{SPAN} ago\b|(?<=UTC, )now\b", "<span> ago"),
]


def golden(name: str, text: str) -> str:
    """The text of a golden file; with LOWKIQ_RENEW_GOLDEN=1 the given text becomes it."""
    path = HERE / name
    if os.environ.get(RENEW):
        path.write_text(text)
    return path.read_text()


def settled(text: str, changing: list[tuple[str, str]] = CHANGING) -> str:
    """The text without what differs from run to run."""
    for pattern, stands in changing:
        text = re.sub(pattern, stands, text)
    return text


def written(value: Any, indent: str = "") -> str:
    """JSON for a reader: what fits stands in one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {written(one, inner)}" for name, one in value.items()]
        begin, end = "{}"
    else:
        parts = [written(one, inner) for one in value]
        begin, end = "[]"
    return f"{begin}\n" + ",\n".join(f"{inner}{part}" for part in parts) + f"\n{indent}{end}"
