"""System checks: settings on each ``manage.py check``, the findings of ``doctor`` with ``--deploy``."""

from __future__ import annotations

import threading
from typing import Any

from django.core import checks

from celery_lowkiq.contrib.django.celery_app import celery_app
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.views import ERROR, OK, Finding

INVALID, UNREACHABLE, FOUND, BROKEN = "lowkiq.E001", "lowkiq.W001", "lowkiq.W002", "lowkiq.E002"

#: Celery runs all checks when it imports the modules of tasks, which these checks need.
_this_thread = threading.local()


@checks.register("lowkiq")
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check settings and ordered tasks, without Redis."""
    if getattr(_this_thread, "checking", False):
        return []
    _this_thread.checking = True
    try:
        for task in Inspector(celery_app()).tasks().values():
            task.queue_spec  # noqa: B018 - made at its first use
    except ConfigurationError as error:
        return [checks.Error(str(error), id=INVALID)]
    finally:
        _this_thread.checking = False
    return []


@checks.register("lowkiq", deploy=True)
def check_health(**_: Any) -> list[checks.CheckMessage]:
    """Check Redis, nodes and queues, as ``celery lowkiq doctor``."""
    try:
        findings = Inspector(celery_app()).doctor()
    except ConfigurationError:
        return []  # check_settings says it
    return [_message(finding) for finding in findings if finding.level != OK]


def _message(finding: Finding) -> checks.CheckMessage:
    text, hint = f"{finding.subject}: {finding.text}", finding.advice or None
    if finding.subject == "connection":
        # Where an image is built there is no Redis.
        return checks.Warning(text, hint=hint, id=UNREACHABLE)
    if finding.level == ERROR:
        return checks.Error(text, hint=hint, id=BROKEN)
    return checks.Warning(text, hint=hint, id=FOUND)
