"""What a Django user may do on the dashboard."""

from __future__ import annotations

from typing import Any

from celery_lowkiq.integration.app.setting_validators import Role
from celery_lowkiq.web.access import OPERATOR, VIEWER


def role_of(user: Any) -> Role | None:
    """Return the role that the permissions of a user give; None: the user may not see the dashboard.

    Superusers have all permissions; inactive and anonymous users have none.
    """
    if user.has_perm("lowkiq.change_dashboard"):
        return OPERATOR
    return VIEWER if user.has_perm("lowkiq.view_dashboard") else None
