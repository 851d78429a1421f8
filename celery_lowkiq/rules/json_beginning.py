"""Reads JSON that was cut, as far as it goes."""

from __future__ import annotations

import json
import re
from typing import Any

#: A text up to its last whole character, and whether it ends; a bracket; a comma or colon; a number or word.
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*)(?P<end>"?)"""
    r"""|(?P<open>[\[{])|(?P<close>[\]}])|(?P<sign>[,:])|(?P<word>[^\s,:\[\]{}"]+))"""
)
_CLOSES = {"[": "]", "{": "}"}


def load_beginning(text: str) -> Any:
    """Return the value of the beginning of a JSON text.

    A text that is cut ends where it was cut. A number, word or key that is cut is left out, and brackets are
    closed. Raises ValueError, RecursionError.
    """
    closers: list[str] = []
    is_key: list[bool] = []
    at, whole, closing = 0, 0, ""
    while found := _TOKEN.match(text, at):
        at = found.end()
        in_key = bool(is_key and is_key[-1])
        if found["open"]:
            closers.append(_CLOSES[found["open"]])
            is_key.append(found["open"] == "{")
        elif found["close"]:
            if not closers or closers.pop() != found["close"]:
                raise ValueError(f"a bracket too much at {at}")
            is_key.pop()
        elif found["sign"]:
            if closers and closers[-1] == "}":
                is_key[-1] = found["sign"] == ","
            continue
        elif in_key or (found["word"] and at == len(text)):
            continue
        # Behind the last one, no bracket comes any more: they are closed as they are at the end.
        whole, closing = at, '"' if found["text"] and not found["end"] else ""
    return json.loads(text[:whole] + closing + "".join(reversed(closers)))
