"""What ``manage.py check`` says of ordered tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from celery import Celery

from celery_lowkiq import ConfigurationError, ordered_task
from celery_lowkiq.contrib.django import celery_app, checks
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.health import ERROR, OK, WARNING, Finding


@pytest.fixture
def app(monkeypatch):
    app = Celery("checked", broker="redis://localhost:1/0", set_as_current=False)
    app.finalized = True  # without the tasks that other tests share with every app

    @ordered_task(app=app, shared=False, name="sync")
    def sync(payloads_by_id): ...

    monkeypatch.setattr(checks, "celery_app", lambda: app)
    return app


def said(messages):
    return [(message.id, message.msg, message.hint) for message in messages]


def test_a_right_project_has_no_message(app):
    assert checks.check_settings() == []


def test_a_wrong_setting_is_an_error_without_redis(app):
    app.conf.lowkiq_lanse = 3
    ((name, text, _),) = said(checks.check_settings())
    assert name == "lowkiq.E001"
    assert "lowkiq_lanse" in text
    assert checks.check_health() == []  # said once


def test_a_project_without_a_celery_app_is_an_error(monkeypatch):
    def no_app():
        raise ConfigurationError(celery_app.NO_APP)

    monkeypatch.setattr(checks, "celery_app", no_app)
    assert said(checks.check_settings()) == [("lowkiq.E001", celery_app.NO_APP, None)]


def test_celery_checks_while_the_check_imports_its_tasks(app, monkeypatch):
    """Celery's Django fixup runs all checks when it imports the modules of tasks."""
    seen = []
    monkeypatch.setattr(
        app.loader, "import_default_modules", lambda: seen.append(checks.check_settings()), raising=False
    )
    assert checks.check_settings() == []
    assert seen == [[]]


def test_findings_of_doctor_are_messages(app, monkeypatch):
    findings = (
        Finding(OK, "connection", "Redis answers."),
        Finding(WARNING, "queue sync", "It is paused.", "Resume it."),
        Finding(ERROR, "server", "It evicts jobs.", "Set maxmemory-policy."),
    )
    monkeypatch.setattr(Inspector, "doctor", lambda self: findings)
    assert said(checks.check_health()) == [
        ("lowkiq.W002", "queue sync: It is paused.", "Resume it."),
        ("lowkiq.E002", "server: It evicts jobs.", "Set maxmemory-policy."),
    ]


def test_without_redis_there_is_only_a_warning(app):
    ((name, text, _),) = said(checks.check_health())
    assert (name, text[:11]) == ("lowkiq.W001", "connection:")


@pytest.mark.full
@pytest.mark.parametrize(
    "missing, code",
    [
        ("django", "import celery_lowkiq.cli.main, celery_lowkiq.web, celery_lowkiq.testing"),
        ("pytest", "import celery_lowkiq.contrib.django.test as test; test.OrderedTasksMixin"),
    ],
)
def test_who_has_not_installed_it_does_not_need_it(missing, code):
    hidden = f"import sys; sys.modules[{missing!r}] = None; {code}"
    subprocess.run([sys.executable, "-c", hidden], check=True, timeout=60)
