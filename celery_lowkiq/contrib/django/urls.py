"""The dashboard of the current app: ``path("queues/", include("celery_lowkiq.contrib.django.urls"))``."""

from __future__ import annotations

from typing import Any

from celery_lowkiq.contrib.django.dashboard import NAMESPACE, dashboard_urls

app_name: str = NAMESPACE
urlpatterns: list[Any] = dashboard_urls()[0]
