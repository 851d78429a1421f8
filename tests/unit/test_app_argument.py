"""Commands in advice name the app as its user does."""

from __future__ import annotations

import sys

import pytest
from celery import Celery

from celery_lowkiq.integration.current import naming

ADVICE = "See `celery -A proj lowkiq held q`, or celery -A proj lowkiq doctor."


@pytest.mark.parametrize(
    "argv, name",
    [
        (["/usr/bin/celery", "-A", "shop.tasks", "lowkiq", "doctor"], "shop.tasks"),
        (["celery", "--app=shop.tasks:app", "worker"], "shop.tasks:app"),
        (["/venv/celery/__main__.py", "-Ashop", "worker"], "shop"),
        (["celery", "--app", "shop", "lowkiq", "web"], "shop"),
        (["gunicorn", "-A", "other"], "main"),
        (["celery", "-A"], "main"),
    ],
)
def test_a_command_names_the_app(monkeypatch, argv, name):
    monkeypatch.setattr(sys, "argv", argv)
    app = Celery("main", set_as_current=False)
    assert naming(ADVICE, app) == ADVICE.replace("proj", name)


def test_the_variable_in_place_of_the_option(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["celery", "lowkiq", "doctor"])
    monkeypatch.setenv("CELERY_APP", "shop")
    assert "celery -A shop lowkiq doctor" in naming(ADVICE, Celery("main", set_as_current=False))


def test_an_app_without_a_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert naming(ADVICE, Celery(set_as_current=False)) == ADVICE
