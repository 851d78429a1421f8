"""The declaration of a setting as a field of a dataclass."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from celery_lowkiq.rules.validators import Option, Validator


def setting(
    default: Any, valid: Validator, documentation: str, default_words: str = "", secret: bool = False
) -> Any:
    """A field with its default, its valid values and its row of the documentation."""
    option = Option(default, valid, documentation, default_words, secret)
    return field(repr=not secret, metadata={"option": option})
