"""Fingerprints of failures: the same error at the same place of the user's code has the same one."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from celery_lowkiq.rules.text import last_error_line

#: Maximum length of the error in a fingerprint, in characters.
MAX_ERROR = 200
#: Begins a stored error that has a fingerprint; then come its 16 digits, and a zero byte.
_MARK = b"\0F"
_MARKED = re.compile(rb"\0F([0-9a-f]{16})\0")
_STANDARD_LIBRARY = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib")})
_INSTALLED = ("/site-packages/", "/dist-packages/")
#: Quoted texts, and words with numbers such as 1.5, order-42, a UUID or 0x7f3a.
_PARTS = re.compile(r"""(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)|[\w-]+(?:[.,:][\w-]*\d[\w-]*)*""")
_DIGIT = re.compile(r"\d")


class Fingerprint(NamedTuple):
    """Common parts of the failures of a group; ``error`` is the type and the masked message."""

    id: str
    error: str
    #: Module and function of the last frame of the user's code; "" when unknown.
    where: str


def fingerprint(
    error: BaseException, framework: tuple[str, ...] = (), clean: Callable[[str], str] = str
) -> Fingerprint:
    """Return the fingerprint of an exception. ``framework``: folders whose frames are skipped.

    ``clean`` masks the secrets of a message.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the user's code
        message = ""
    line = next((line for line in clean(message[:5000]).splitlines() if line.strip()), "").strip()
    return _fingerprint(f"{name}: {line}" if line else name, _place(error.__traceback__, framework))


def text_fingerprint(error: str) -> Fingerprint:
    """Return the fingerprint of the text of an error, when nothing else is known of it."""
    return _fingerprint(last_error_line(error), "")


def masked(text: str) -> str:
    """Mask what differs between failures of one kind: numbers, ids, UUIDs, and quoted texts with digits."""
    return _PARTS.sub(lambda found: _mask(found[0]), text)


def mark_error(print_id: str, data: bytes) -> bytes:
    """Return the stored form of an error with its fingerprint."""
    return _MARK + print_id.encode() + b"\0" + data


def read_mark(data: bytes) -> tuple[str, bytes]:
    """Split a stored error into its fingerprint ("" without one) and the rest."""
    found = _MARKED.match(data)
    return (found[1].decode(), data[found.end() :]) if found else ("", data)


def _fingerprint(error: str, where: str) -> Fingerprint:
    shown = masked(error[: 2 * MAX_ERROR])[:MAX_ERROR]
    digest = hashlib.sha1(f"{where}\0{shown}".encode("utf-8", "replace"), usedforsecurity=False)
    return Fingerprint(digest.hexdigest()[:16], shown, where)


def _mask(part: str) -> str:
    if not _DIGIT.search(part):
        return part
    return f"{part[0]}*{part[0]}" if part[0] in "'\"" else "*"


def _place(step: TracebackType | None, framework: tuple[str, ...]) -> str:
    """The last frame of no library; else of the package of the task's function; else the last one."""
    package, found, of_package, last = "", "", "", ""
    while step is not None:
        code = step.tb_frame.f_code
        if not (framework and code.co_filename.startswith(framework)):
            module = str(step.tb_frame.f_globals.get("__name__", "?"))
            last = f"{module}.{code.co_name}"
            package = package or module.partition(".")[0]
            if not _is_library(code.co_filename):
                found = last
            elif module.partition(".")[0] == package:
                of_package = last
        step = step.tb_next
    return found or of_package or last


def _is_library(path: str) -> bool:
    path = path.replace("\\", "/")
    if any(folder in path for folder in _INSTALLED) or path.startswith("<frozen "):
        return True
    return path.startswith(_STANDARD_LIBRARY)
