"""A model without a table: it gives the dashboard its permissions, and its link in the admin."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class NoRows(models.Manager["Dashboard"]):
    """Finds nothing, without a query: commands such as ``dumpdata`` read all models."""

    def get_queryset(self) -> models.QuerySet[Dashboard]:
        nothing: models.QuerySet[Dashboard] = super().get_queryset().none()
        return nothing


class Dashboard(models.Model):
    """The dashboard of the ordered queues."""

    objects: ClassVar[NoRows] = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions: tuple[str, ...] = ("view", "change")
        verbose_name = verbose_name_plural = "dashboard"
