"""The Celery app of a Django project."""

from __future__ import annotations

from typing import Any

from celery import Celery, current_app

from celery_lowkiq.integration.current import is_fallback_app
from celery_lowkiq.rules.errors import ConfigurationError

NO_APP = (
    "the project has no Celery app: make one in a module that the project's __init__.py imports, after "
    "DJANGO_SETTINGS_MODULE is set"
)


def celery_app() -> Celery:
    """Return the current app. Raises ConfigurationError if the project has not made one."""
    proxy: Any = current_app
    app: Celery = proxy._get_current_object()
    if is_fallback_app(app):
        raise ConfigurationError(NO_APP)
    return app
