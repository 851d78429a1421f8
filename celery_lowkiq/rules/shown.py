"""Text from outside, as people may see it: it cannot forge a line, nor speak to a terminal."""

from __future__ import annotations


def escaped(text: str) -> str:
    """The text on one line: what is not printable stands as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def shortened(text: str, width: int) -> str:
    """At most so many characters of it."""
    return text if len(text) <= width else text[: width - 3] + "..."


def duration(seconds: float) -> str:
    """A time span as one number and its unit: 12.5 s, 40 min, 3.1 h, 20 days."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
