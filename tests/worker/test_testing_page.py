"""The sections of docs/testing.md about other plugins, run as their reader runs them."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from tests.waiting import eventually
from tests.worker.nodes import ProcessContainer
from tests.worker.users import ROOT, users_pytest

pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs" / "testing.md").read_text()
PROJECT = """
from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj", broker="redis://localhost:1/0")

@ordered_task(app=app, max_retries=3)
def sync_order(payloads_by_id):
    return "saved"
"""


def section_text(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def section(title: str) -> str:
    """The code of a section."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section_text(title), re.MULTILINE | re.DOTALL))


@pytest.mark.full
def test_celerys_own_idiom(pytester, monkeypatch):
    addopts = "addopts = -p no:celery -p celery.contrib.pytest"
    assert f"`{addopts}`" in section_text("pytest-celery")
    pytester.makeini(f"[pytest]\n{addopts}")
    users_pytest(pytester, monkeypatch)(section("With Celery's own pytest fixtures"), 1)


def test_fakeredis(pytester, monkeypatch):
    tests = """
def test_merging_a_retry_and_the_clock(lowkiq):
    sync_order.delay("42", "new")
    sync_order.delay("42", "paid")
    lowkiq.assert_enqueued(sync_order, "42", "new", "paid")
    assert lowkiq.drain() == 1
    sync_order.apply_async(("42", "later"), countdown=60)
    assert lowkiq.drain() == 0
    lowkiq.clock.move(60)
    assert lowkiq.drain() == 1
"""
    head = "from proj import app, sync_order\n"
    users_pytest(pytester, monkeypatch, proj=PROJECT)(head + section("fakeredis") + tests, 1)


@pytest.mark.full
def test_pytest_django(pytester, monkeypatch):
    """On the project that docs/django.md makes, as far as the test needs it."""
    page = (ROOT / "docs" / "django.md").read_text()
    (pytester.path / "orders").mkdir()
    (pytester.path / "orders" / "__init__.py").touch()
    for name in ("models", "tasks", "views"):
        found = re.search(rf"^# orders/{name}\.py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        (pytester.path / "orders" / f"{name}.py").write_text(found[1])
    site = """
SECRET_KEY = "a test has no secrets"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["orders"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "redis://localhost:1/0"
"""
    urls = """
from django.urls import path
from orders.views import order
urlpatterns = [path("orders/<int:order_id>/", order)]
"""
    app = """
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site_settings")
    pytester.makeini("[pytest]\naddopts = -p pytest_django.plugin -p celery_app --nomigrations")
    passes = users_pytest(pytester, monkeypatch, site_settings=site, urls=urls, celery_app=app)
    passes(section("pytest-django"), 1)


@pytest.mark.full
def test_the_container_of_pytest_celery_serves_the_ordered_queue(pytester, monkeypatch, redis_server):
    """Its command runs here as a process: there is no Docker where these tests run."""
    pytester.makeini("[pytest]\naddopts = -p pytest_celery.plugin")
    tests = """
def test_the_command(default_worker_command, default_worker_container_session_cls):
    import pathlib, shlex
    assert default_worker_container_session_cls is OrderedWorker
    pathlib.Path("command").write_text(shlex.join(default_worker_command))
"""
    users_pytest(pytester, monkeypatch)(section("pytest-celery") + tests, 1)
    url = f'broker="{redis_server.url}"'
    pytester.makepyfile(app=PROJECT.replace('broker="redis://localhost:1/0"', url).replace('"proj"', '"app"'))
    program, *words = shlex.split((pytester.path / "command").read_text())
    environ = {"PYTHONPATH": f"{ROOT}:{pytester.path}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", program, *words]
    node = ProcessContainer(command, environ, pytester.path / "log")
    try:
        eventually(node.ready, 60)
        assert "  .> app.sync_order " in node.logs()
    finally:
        node.teardown()
