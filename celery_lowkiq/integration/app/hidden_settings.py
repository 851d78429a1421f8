"""Hides settings in ``inspect conf`` and ``report``, as Celery hides the broker's URL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from celery.app import utils

from .signing import SETTING as KEYS

_utils: Any = utils
_shown = _utils.filter_hidden_settings


def hide_settings(names: Sequence[str]) -> None:
    """Hide the values of these settings."""
    pattern = f"{_utils.HIDDEN_SETTINGS.pattern}|{'|'.join(names)}"
    _utils.HIDDEN_SETTINGS = re.compile(pattern, re.IGNORECASE)
    _utils.filter_hidden_settings = _without_keys


def _without_keys(conf: Mapping[str, Any]) -> Any:
    # Of a mapping, Celery hides values by their own names.
    return _shown({name: bool(v) if name.lower().endswith(KEYS) else v for name, v in conf.items()})
