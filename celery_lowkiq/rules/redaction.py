"""Redaction: masks secrets in texts and in the beginning of a JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

# Reads JSON that was cut, as far as it goes.

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


# Redaction: masks the values of keys that hold secrets, in payloads and in text.
#
# A key holds a secret if its name contains one of the given names, whatever the case: ``token`` covers
# ``AccessToken`` and ``x-api-token``.

#: Stands for a value that is not shown.
MASK = "[redacted]"
#: Deeper values are masked whole.
MAX_DEPTH = 100
#: Shortest value that is masked wherever it occurs in a text: a shorter one occurs by chance.
LEAST = 4
#: Maximum number of such values.
MOST = 1000
_QUOTED = re.compile(r"""[bBrRuU]{0,2}(\\*)(["'])""")
_BRACKETS = {"{": "}", "[": "]", "(": ")"}
_PARTS = re.compile(r"""(?<!\\)(\\*)(["'{}\[\]()])""")
_SCHEME = re.compile(r"(?:Bearer|Basic|Digest|Token|Negotiate)\s+", re.IGNORECASE)
_WORD = re.compile(r"""[^\s,;&)\]}"'\\]*""")
#: A frame of a traceback, with the line of code that Python shows below it: code, no values.
_FRAME = re.compile(r'(^[ |]*File "[^\n]*\n(?:[ |]{4,}[^\n]*(?:\n|\Z)){0,2})', re.MULTILINE)


class Redactor:
    """Masks by the names of keys. Without names it masks nothing."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = tuple(name.lower() for name in names)
        words = "|".join(map(re.escape, self._names))
        # Bounded repetitions: a text of one long word takes linear time.
        self._key = re.compile(
            rf"""(?:{words})[\w.-]{{0,64}}\\*["']?\]?\s{{0,8}}(?:=>|[:=])\s{{0,8}}"""
            rf"""|[(\[]b?\\*["'][\w.-]{{0,40}}?(?:{words})[\w.-]{{0,64}}\\*["']\s?,\s?""",
            re.IGNORECASE,
        )

    def __bool__(self) -> bool:
        return bool(self._names)

    def covers(self, key: Any) -> bool:
        """True if the value of a key is a secret."""
        if isinstance(key, bytes):
            key = key.decode("latin-1")
        return isinstance(key, str) and self.may_have(key)

    def value(self, value: Any, depth: int = 0) -> Any:
        """The value with MASK for each secret in it, also in pairs of a name and a value, and in texts."""
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return value
        if depth > MAX_DEPTH:
            return MASK
        if isinstance(value, Mapping):
            return {
                key: MASK if self.covers(key) else self.value(each, depth + 1) for key, each in value.items()
            }
        if _is_pair(value) and self.covers(value[0]):
            return [value[0], MASK]
        return [self.value(each, depth + 1) for each in value]

    def text(self, text: str, secrets: Iterable[str] = ()) -> str:
        """The text with MASK for what follows a key of a secret, and for each of ``secrets``.

        A cut value is masked to the end. Lines of code in a traceback are left as they are.
        """
        if self.may_have(text):
            parts = _FRAME.split(text)
            # The odd parts are frames.
            text = "".join(part if at % 2 else self._masked(part) for at, part in enumerate(parts))
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

    def secrets(self, value: Any) -> set[str]:
        """Return the masked parts of a value, as a text may quote them: at most MOST."""
        found: set[str] = set()
        if not self._names:
            return found
        for leaf in self._secret_leaves(value, False, 0):
            text = leaf if isinstance(leaf, str) else str(leaf)
            if len(text) >= LEAST:
                found |= {text, repr(text)[1:-1], json.dumps(text)[1:-1]}
            if len(found) >= MOST:
                break
        return found

    def has_mask(self, value: Any, depth: int = 0) -> bool:
        """True if a value has MASK anywhere: it was made from what was shown."""
        if isinstance(value, str):
            return MASK in value
        if depth > MAX_DEPTH or not isinstance(value, (Mapping, list, tuple)):
            return False
        inner = value.values() if isinstance(value, Mapping) else value
        return any(self.has_mask(each, depth + 1) for each in inner)

    def may_have(self, text: str) -> bool:
        """True if a text has a name of a secret anywhere."""
        lower = text.lower()
        return any(name in lower for name in self._names)

    def _masked(self, text: str) -> str:
        parts, at = [], 0
        while found := self._key.search(text, at):
            end = _end_of_value(text, found.end(), found[0])
            parts += [text[at : found.end()], _mask_for(text[found.end() : end])]
            at = end
        return "".join((*parts, text[at:]))

    def _secret_leaves(self, value: Any, is_secret: bool, depth: int) -> Iterator[Any]:
        if depth > MAX_DEPTH:
            return
        if isinstance(value, Mapping):
            for key, each in value.items():
                yield from self._secret_leaves(each, is_secret or self.covers(key), depth + 1)
        elif isinstance(value, (list, tuple, set, frozenset)):
            is_secret = is_secret or (_is_pair(value) and self.covers(value[0]))
            for each in value:
                if not self.covers(each) or not _is_pair(value):
                    yield from self._secret_leaves(each, is_secret, depth + 1)
        elif is_secret and not isinstance(value, bool) and value is not None:
            yield value


@lru_cache(maxsize=64)
def redactor_of(names: tuple[str, ...]) -> Redactor:
    return Redactor(names)


def _is_pair(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], (str, bytes))


def _mask_for(value: str) -> str:
    """MASK in the quotes of the value, so that JSON stays JSON."""
    quoted = _QUOTED.match(value)
    if quoted is None:
        return MASK if value else ""
    quote = quoted[1] + quoted[2]
    return f"{quote}{MASK}{quote}"


def _end_of_value(text: str, at: int, key: str) -> int:
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        return _end_of_quoted(text, quoted.end(), len(quoted[1]), quoted[2])
    if text[at : at + 1] in _BRACKETS and at < len(text):
        return _end_of_bracket(text, at)
    if "authorization" in key.lower():
        line = text.find("\n", at)
        return len(text) if line < 0 else line
    scheme = _SCHEME.match(text, at)
    word = _WORD.match(text, scheme.end() if scheme else at)
    return word.end() if word else at


def _end_of_quoted(text: str, at: int, escapes: int, quote: str) -> int:
    """Where a quoted text ends whose quotes have so many backslashes; the end of the text without one."""
    # The lookbehind keeps a long run of backslashes linear: it is matched from its first one only.
    for found in re.compile(rf"(?<!\\)(\\*){quote}").finditer(text, at):
        before = len(found[1])
        if before == escapes if escapes else before % 2 == 0:
            return found.end()
    return len(text)


def _end_of_bracket(text: str, at: int) -> int:
    """Where the bracket at a position is closed; the end of the text if it is not."""
    open_brackets = [_BRACKETS[text[at]]]
    at += 1
    while found := _PARTS.search(text, at):
        part, at = found[2], found.end()
        if part in _BRACKETS:
            open_brackets.append(_BRACKETS[part])
        elif part in "\"'":
            at = _end_of_quoted(text, at, len(found[1]), part)
        elif open_brackets and part == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:
                return at
    return len(text)
