"""Validators of settings: functions by their dotted paths, mappings, weights, names."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Literal, get_args

from kombu.utils.imports import symbol_by_name

from celery_lowkiq.rules.times import Times
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


#: What a user of the dashboard may do.
Role = Literal["viewer", "operator"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: In ``lowkiq_web_roles``: everybody else.
EVERYBODY = "*"


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


def read_redacted(value: Any) -> tuple[str, ...]:
    """Raises ValueError unless it is a list of texts that are not empty: an empty one would mask all."""
    if not isinstance(value, (list, tuple)) or not all(map(text().accepts, value)):
        raise ValueError
    return tuple(value)


def read_logins(value: Any) -> tuple[str, ...]:
    """Raises ValueError unless all are names and passwords, each name once."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(login, str) for login in found):
        raise ValueError
    parts = [login.partition(":") for login in found]
    if len({name for name, *_ in parts}) < len(parts) or not all(map(all, parts)):
        raise ValueError
    return tuple(found)


def read_roles(value: Any) -> dict[str, Role]:
    """Raises ValueError unless all are names with roles."""
    roles = read_mapping(value)
    if not all(text().accepts(name) and role in get_args(Role) for name, role in roles.items()):
        raise ValueError
    return roles


def read_networks(value: Any) -> tuple[Network, ...]:
    """Raises ValueError unless all are addresses or networks."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ValueError
    return tuple(map(ipaddress.ip_network, value))


def read_times(value: Any) -> Times:
    """Raises ValueError unless it is ``relative`` or the name of a time zone."""
    if not isinstance(value, str):
        raise ValueError
    return Times.of(value)
