"""Validators of settings: functions by their dotted paths, mappings, weights, names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_lowkiq.rules.validators import Validator, is_number, text


def function(named: Mapping[str, Any] | None = None) -> Validator:
    """A function, its dotted path, or one of the ``named``."""
    known = named or {}

    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = known.get(value) or _import(value)
        if not callable(value):
            raise ValueError
        return value

    names = "".join(f"{name!r}, " for name in known)
    return Validator(f"{names}a function, or the dotted path of one", read)


def _import(path: str) -> Any:
    try:
        return symbol_by_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be imported: {error}") from error


def read_functions(value: Any) -> tuple[Any, ...]:
    """Raises ValueError unless it is a list of functions."""
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(function().read(entry) for entry in value)


functions: Validator = Validator("a list of functions, or of their dotted paths", read_functions)


def read_mapping(value: Any) -> dict[str, Any]:
    """Raises ValueError unless it is a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError
    return dict(value)


def read_names(value: Any) -> frozenset[str]:
    """Raises ValueError unless it is a collection of texts that are not empty."""
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(map(text().accepts, value)):
        raise ValueError
    return frozenset(value)


def read_weights(value: Any) -> dict[str, float]:
    """Raises ValueError unless all weights are within bounds: others would draw a queue always, or never."""
    weights = read_mapping(value)
    if not all(text().accepts(name) and is_number(weight, 0.001, 1000) for name, weight in weights.items()):
        raise ValueError
    return weights
