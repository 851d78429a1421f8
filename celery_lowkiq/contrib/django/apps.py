"""The Django application."""

from __future__ import annotations

from django.apps import AppConfig


class OrderedQueues(AppConfig):
    """Adds system checks, permissions, and a link in the admin."""

    name: str = "celery_lowkiq.contrib.django"
    label: str = "lowkiq"
    verbose_name: str = "Ordered queues"
    default_auto_field: str = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from celery_lowkiq.contrib.django import checks  # noqa: F401
