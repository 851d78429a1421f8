"""What a Django user may do on the dashboard."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

#: A viewer changes nothing.
Role: TypeAlias = Literal["viewer", "operator"]


def role_of(user: Any) -> Role | None:
    """Return the role that the permissions of a user give; None: the user may not see the dashboard.

    Superusers have all permissions; inactive and anonymous users have none.
    """
    if user.has_perm("lowkiq.change_dashboard"):
        return "operator"
    return "viewer" if user.has_perm("lowkiq.view_dashboard") else None
