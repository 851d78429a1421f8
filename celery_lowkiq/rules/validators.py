"""Validators of values that users give, and the declaration of a setting or a task option."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, get_args, get_type_hints

from celery_lowkiq.rules.errors import ConfigurationError


def is_whole(value: Any, low: float = -math.inf, high: float = math.inf) -> TypeGuard[int]:
    """True if a value is an ``int`` from ``low`` to ``high``, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """True if a value is a finite ``int`` or ``float`` from ``low`` to ``high``, and not a ``bool``."""
    return is_whole(value, low, high) or (
        isinstance(value, float) and math.isfinite(value) and low <= value <= high
    )


def invalid(name: str, value: Any, expected: str, fix: str = "") -> str:
    """Return the text of an error about a value: what is expected, and what to do."""
    return f"{name}={value!r} is invalid: expected {expected}" + (f". {fix}" if fix else "")


@dataclass(frozen=True)
class Validator:
    """Checks and reads a value; ``expected`` says in words what is valid."""

    expected: str
    #: Returns the meaning of the value. Raises ValueError, with advice, for an invalid one.
    read: Callable[[Any], Any]

    def check(self, name: str, value: Any, secret: bool = False) -> Any:
        """Return the meaning of the value. Raises ConfigurationError, which does not show a secret value."""
        try:
            return self.read(value)
        except ConfigurationError:
            raise
        except ValueError as error:
            if secret:
                raise ConfigurationError(f"{name} is invalid: expected {self.expected}") from None
            raise ConfigurationError(invalid(name, value, self.expected, str(error))) from None

    def accepts(self, value: Any) -> bool:
        try:
            self.read(value)
        except ValueError:
            return False
        return True

    def or_none(self) -> Validator:
        """Return a validator that accepts None, too."""
        return replace(
            self,
            expected=f"{self.expected}, or None",
            read=lambda value: None if value is None else self.read(value),
        )


def matching(
    expected: str, is_valid: Callable[[Any], bool], make: Callable[[Any], Any] = lambda value: value
) -> Validator:
    """Return a validator of the values that ``is_valid`` accepts; ``make`` returns their meaning."""

    def read(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError
        return make(value)

    return Validator(expected, read)


def whole(low: int, high: int | None = None, of: str = "") -> Validator:
    """Return a validator of whole numbers; ``of`` says what they count."""
    expected = f"a whole number{of and f' of {of}'} from {low}"
    if high is None:
        return matching(expected, lambda value: is_whole(value, low))
    return matching(f"{expected} to {high}", lambda value: is_whole(value, low, high))


def seconds(low: float, high: float) -> Validator:
    return matching(f"seconds from {low:.12g} to {high:.12g}", lambda value: is_number(value, low, high))


def text(expected: str = "a text") -> Validator:
    """Return a validator of texts that are not empty."""
    return matching(expected, lambda value: isinstance(value, str) and bool(value))


def one_of(literal: Any) -> Validator:
    """Return a validator of the values of a ``Literal``."""
    values = get_args(literal)
    *others, last = map(repr, values)
    return matching(f"{', '.join(others)} or {last}", lambda value: value in values)


run_limit: Validator = matching("seconds above 0", lambda value: is_number(value, 0) and value > 0).or_none()


def first_limit(*limits: Any) -> float | None:
    """Return the first time limit in s, else None. Values that are no time limits are skipped."""
    for each in limits:
        if each is not None and run_limit.accepts(each):
            limit: float = each
            return limit
    return None


boolean: Validator = matching("True or False", lambda value: isinstance(value, bool))


@dataclass(frozen=True)
class Option:
    """The declaration of a setting or of a task option."""

    default: Any
    valid: Validator
    #: Its row in the documentation.
    help: str
    #: The default in words, when its ``repr`` says too little.
    default_words: str = ""
    secret: bool = False


def options_of(declaration: Any) -> dict[str, Option]:
    """Return the options that a TypedDict declares by ``name: Annotated[type, Option(...)]``."""
    hints = get_type_hints(declaration, include_extras=True)
    found = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: option for name, option in found.items() if isinstance(option, Option)}
