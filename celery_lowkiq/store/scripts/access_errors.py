"""What Redis says to a user that it does not know, or that may not do what is needed."""

from __future__ import annotations

from redis import exceptions

from celery_lowkiq.rules.errors import AccessDenied, LoginRefused, StoreError

#: Where the password is set. Its value is in no message.
URL = "lowkiq_url (broker_url, where lowkiq_url is not set)"
#: What stands for the code NOPERM in the error of a script: in Redis 7 and Valkey, and in Redis 6.2.
OF_SCRIPTS = ("ACL failure in script", "The user executing the script can't")


def access_error(error: BaseException) -> StoreError | None:
    """The error by its name in Redis: NOAUTH, WRONGPASS or NOPERM; None for any other."""
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError):
        return LoginRefused(_login(text))
    if isinstance(error, exceptions.NoPermissionError) or any(known in text for known in OF_SCRIPTS):
        return AccessDenied(
            f"Redis does not permit this (NOPERM): {text.rstrip('. ')}. Give its user the rights that "
            "docs/operations.md lists"
        )
    return None


def _login(text: str) -> str:
    if "Authentication required" in text:
        return f"Redis asks for a password (NOAUTH): add it to {URL}"
    if "without any password" in text or "no password is set" in text:
        return f"Redis has no password, and was given one (AUTH): set it in Redis, or take it out of {URL}"
    return f"Redis refuses user or password (WRONGPASS): correct them in {URL}, or in Redis"
