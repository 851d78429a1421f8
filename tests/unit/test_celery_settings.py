"""A setting of Celery's that is read for each call is the one of ``app.conf`` at that time."""

from __future__ import annotations

from unittest import mock

import pytest
from celery import Celery

from celery_lowkiq.integration.settings import celery_setting


class Module:
    """A configuration that other code changes, as tests with Django's settings do."""

    CELERY_TASK_ALWAYS_EAGER = True


def change_conf(app):
    app.conf.task_always_eager = True


def update_conf(app):
    app.conf.update(task_always_eager=True)


def read_module(app):
    app.config_from_object(Module, namespace="CELERY")


def read_old_names(app):
    app.config_from_object({"CELERY_ALWAYS_EAGER": True})


def add_defaults(app):
    assert app.conf.task_always_eager is False
    app.add_defaults({"task_always_eager": True})


def replace_conf(app):
    app.conf = mock.Mock(task_always_eager=True)


@pytest.mark.parametrize(
    "change", [change_conf, update_conf, read_module, read_old_names, add_defaults, replace_conf]
)
def test_a_setting_of_celerys_is_that_of_its_configuration(change):
    app = Celery("settings", set_as_current=False)
    assert celery_setting(Celery("other", set_as_current=False), "task_always_eager") is False
    change(app)
    assert celery_setting(app, "task_always_eager") is app.conf.task_always_eager is True


def test_a_setting_is_read_anew_for_each_call(monkeypatch):
    app = Celery("settings", set_as_current=False)
    read_module(app)
    assert celery_setting(app, "task_always_eager") is True
    monkeypatch.setattr(Module, "CELERY_TASK_ALWAYS_EAGER", False)
    assert celery_setting(app, "task_always_eager") is app.conf.task_always_eager is False
