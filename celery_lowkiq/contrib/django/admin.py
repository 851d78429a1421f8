"""A link from the admin to the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse

from celery_lowkiq.contrib.django.dashboard import dashboard_url
from celery_lowkiq.contrib.django.models import Dashboard

if TYPE_CHECKING:
    DashboardModelAdmin = admin.ModelAdmin[Dashboard]
else:
    DashboardModelAdmin = admin.ModelAdmin


@admin.register(Dashboard)
class DashboardAdmin(DashboardModelAdmin):
    """Leads to the dashboard; absent for a user who may not see it, and where no URL has it."""

    def get_urls(self) -> list[Any]:
        """Return the only URL, which the admin's index links to."""
        view = self.admin_site.admin_view(to_dashboard)
        return [path("", view, name="lowkiq_dashboard_changelist")]

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the admin shows the link."""
        return dashboard_url() is not None and bool(super().has_module_permission(request))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: there are no rows."""
        return False


def to_dashboard(_request: HttpRequest) -> HttpResponse:
    """Redirect to the dashboard."""
    return HttpResponseRedirect(dashboard_url() or reverse("admin:index"))
