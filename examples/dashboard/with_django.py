"""Django: the dashboard is one of its URLs, for users with a permission.

uvicorn examples.dashboard.with_django:application
gunicorn --threads 4 examples.dashboard.with_django:wsgi
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

from .shop import app

DATABASE = os.environ.get("DJANGO_DATABASE", str(Path(tempfile.gettempdir()) / "lowkiq-example.sqlite3"))

settings.configure(  # in your project: settings.py
    SECRET_KEY="an example has no secrets",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "celery_lowkiq.contrib.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE}},
    STATIC_URL="static/",
)
django.setup()


def prepare() -> None:
    """Make the tables, and a first user; in your project: manage.py migrate, createsuperuser."""
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    users = get_user_model().objects
    if not users.exists():
        name, _, password = os.environ.get("DASHBOARD_AUTH", "ops:change me").partition(":")
        users.create_superuser(name, password=password)
    connections.close_all()


# Uvicorn imports this in its event loop, where Django refuses to wait for a database.
preparation = threading.Thread(target=prepare)
preparation.start()
preparation.join()

from django.contrib import admin  # noqa: E402 - after the settings

from celery_lowkiq.contrib.django.dashboard import dashboard_urls  # noqa: E402

urlpatterns = [
    path("", lambda _: JsonResponse({"dashboard": "/ops/queues/"})),
    path("admin/", admin.site.urls),
    path("ops/queues/", dashboard_urls(app)),
]
application = get_asgi_application()
wsgi = get_wsgi_application()
