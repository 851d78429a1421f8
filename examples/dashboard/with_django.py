"""Django: beside its own application in ``asgi.py``, for staff users.

uvicorn examples.dashboard.with_django:application
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import JsonResponse
from django.urls import path

from celery_lowkiq.web import make_app

from .shop import app

PREFIX = "/ops/queues"

if not settings.configured:  # in your project: manage.py and settings.py do this
    settings.configure(
        SECRET_KEY="an example has no secrets",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": os.environ.get("DJANGO_DATABASE", ":memory:"),
            }
        },
    )
    django.setup()

urlpatterns = [path("", lambda _: JsonResponse({"dashboard": f"{PREFIX}/"}))]


def staff_name(request) -> str | None:
    """The name of the session's user, if that user is staff."""
    from django.contrib.auth import SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    session = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = get_user_model().objects.filter(pk=session.get(SESSION_KEY), is_active=True, is_staff=True).first()
    return user.get_username() if user else None


dashboard = make_app(app, auth=staff_name)
site = get_asgi_application()


async def application(scope, receive, send):
    """Serve the dashboard under its prefix, and Django for all else."""
    path = scope.get("path", "")
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        await dashboard({**scope, "root_path": scope.get("root_path", "") + PREFIX}, receive, send)
    else:
        await site(scope, receive, send)
