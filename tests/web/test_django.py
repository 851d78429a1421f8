"""The dashboard in a Django project: F8 of the example, and what the Django application adds."""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from tests.waiting import eventually
from tests.web.django_servers import asgi_server, load, load_often, wsgi_server

PREFIX = "/ops/queues"
FORM = "application/x-www-form-urlencoded"
ROLES = [("root", 200), ("operator", 200), ("viewer", 200), ("stranger", 403)]


@pytest.fixture
def people(django_shop):
    """Users by name, each with a password."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission

    users = get_user_model().objects
    users.all().delete()
    people = SimpleNamespace(
        root=users.create_superuser("root", password="first"),
        operator=users.create_user("operator", password="first", is_staff=True),
        viewer=users.create_user("viewer", password="first", is_staff=True),
        stranger=users.create_user("stranger", password="first", is_staff=True),
    )
    people.operator.user_permissions.add(Permission.objects.get(codename="change_dashboard"))
    people.viewer.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    return people


@pytest.fixture
def browser_of(people):
    """A browser in which that user has logged in; None: nobody has."""
    from django.test import Client

    def browser(name: str | None) -> Client:
        client = Client(headers={"host": "localhost:8000"}, raise_request_exception=True)
        if name is not None:
            assert client.login(username=name, password="first")
        return client

    return browser


def test_without_a_login_the_page_leads_to_it_and_back(browser_of, django_shop):
    answer = browser_of(None).get(f"{PREFIX}/queue?queue=x")
    # The example has not set LOGIN_URL: the admin has a login.
    assert answer.headers["location"] == f"/admin/login/?next={PREFIX}/queue%3Fqueue%3Dx"
    from django.test import override_settings

    with override_settings(LOGIN_URL="https://sso.example/in?a=1"):
        answer = browser_of(None).get(f"{PREFIX}/")
    assert answer.headers["location"] == f"https://sso.example/in?a=1&next={PREFIX}/"


def test_a_login_page_that_the_project_has_is_used(browser_of, monkeypatch):
    from django.conf import settings

    from celery_lowkiq.contrib.django.dashboard import login_url

    assert login_url() == "/admin/login/"
    # A page at the default address of LOGIN_URL.
    monkeypatch.setattr("celery_lowkiq.contrib.django.dashboard.resolve", lambda url: url)
    assert login_url() == settings.LOGIN_URL


@pytest.mark.parametrize(
    "origin, status",
    [("https://shop.example", 303), ("https://trusted.example", 303), ("https://other.example", 403)],
)
def test_a_proxy_is_trusted_as_the_projects_settings_say(browser_of, django_shop, origin, status):
    from django.test import override_settings

    browser = browser_of("root")
    behind_proxy = override_settings(
        SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
        USE_X_FORWARDED_HOST=True,
        CSRF_TRUSTED_ORIGINS=["https://trusted.example"],
    )
    with behind_proxy:
        headers = {"x-forwarded-proto": "https", "x-forwarded-host": "shop.example", "origin": origin}
        page = browser.get(f"{PREFIX}/", headers=headers)
        assert "Secure" in page.headers.get("set-cookie", "") or page.cookies["lowkiq_token"]["secure"]
        form = {
            "queue": django_shop.sync_order.name,
            "action": "run_now_all",
            "back": "/nodes",
            "confirmed": "1",
        }
        form["token"] = browser.cookies["lowkiq_token"].value
        body = urlencode(form)
        answer = browser.post(f"{PREFIX}/change", body, content_type=FORM, headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize("method, path", [("get", "/api/v1/stats"), ("post", "/change")])
def test_without_a_login_a_program_gets_no_page(browser_of, method, path):
    answer = getattr(browser_of(None), method)(PREFIX + path)
    assert (answer.status_code, answer.json()) == (403, {"error": "you are not logged in"})


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_login(browser_of, path):
    assert browser_of(None).get(PREFIX + path).status_code == 200


@pytest.mark.parametrize(
    "name, status", [("root", 200), ("operator", 200), ("viewer", 200), ("stranger", 403)]
)
def test_a_permission_opens_the_dashboard(browser_of, name, status):
    answer = browser_of(name).get(f"{PREFIX}/")
    assert answer.status_code == status
    assert name in answer.text
    assert ("lowkiq.view_dashboard" in answer.text) == (status == 403)


@pytest.mark.parametrize("name, status", [("root", 303), ("operator", 303), ("viewer", 403)])
def test_who_may_change_something(browser_of, django_shop, name, status):
    browser = browser_of(name)
    browser.get(f"{PREFIX}/")
    form = {"queue": django_shop.sync_order.name, "action": "run_now_all", "back": "/nodes", "confirmed": "1"}
    form["token"] = browser.cookies["lowkiq_token"].value
    origin = {"origin": "http://localhost:8000"}
    answer = browser.post(f"{PREFIX}/change", urlencode(form), content_type=FORM, headers=origin)
    assert answer.status_code == status, answer.text


def test_a_changed_password_logs_out(browser_of, people):
    browser = browser_of("root")
    assert browser.get(f"{PREFIX}/").status_code == 200
    people.root.set_password("second")
    people.root.save()
    assert browser.get(f"{PREFIX}/").status_code == 302


@pytest.mark.parametrize("change", ["is_active", "is_superuser"])
def test_who_loses_the_right_sees_nothing(browser_of, people, change):
    browser = browser_of("root")
    setattr(people.root, change, False)
    people.root.save()
    assert browser.get(f"{PREFIX}/").status_code in (302, 403)


@pytest.mark.parametrize("engine", ["signed_cookies", "cache", "cached_db", "file"])
def test_sessions_of_each_engine(browser_of, engine, tmp_path):
    from django.test import override_settings

    backend = f"django.contrib.sessions.backends.{engine}"
    with override_settings(SESSION_ENGINE=backend, SESSION_FILE_PATH=str(tmp_path)):
        assert browser_of("root").get(f"{PREFIX}/").status_code == 200
        assert browser_of(None).get(f"{PREFIX}/").status_code == 302


@pytest.fixture
def connections_left(monkeypatch):
    """Counts the open connections of all threads to the database."""
    from django.db.backends.sqlite3.base import DatabaseWrapper

    opened = []
    connect = DatabaseWrapper.get_new_connection

    def get_new_connection(self, parameters):
        opened.append(connect(self, parameters))
        return opened[-1]

    def left() -> int:
        return sum(map(_is_open, opened))

    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", get_new_connection)
    return SimpleNamespace(opened=opened, left=left)


def _is_open(connection) -> bool:
    import sqlite3

    try:
        connection.total_changes  # noqa: B018 - refused by a closed one
    except sqlite3.ProgrammingError:
        return False
    return True


@pytest.mark.parametrize("serve, name", [(wsgi_server, "wsgi"), (asgi_server, "application")])
def test_no_page_leaves_a_connection_behind(django_shop, browser_of, connections_left, serve, name):
    """F8: one for each thread of the server. test_django_postgres has a database that restarts."""
    from examples.dashboard import with_django

    session = browser_of("root").cookies["sessionid"].value
    before = connections_left.left()
    with serve(getattr(with_django, name)) as port:
        assert "sync_order" in load(port, f"{PREFIX}/", session)[1]
        assert load_often(port, f"{PREFIX}/nodes", session, threads=10, times=2) == [200] * 20
        assert len(connections_left.opened) >= 20
        # The last ones are closed after their answers.
        eventually(lambda: connections_left.left() <= before)


def test_the_admin_has_a_link(browser_of):
    for name in ("root", "viewer"):
        page = browser_of(name).get("/admin/").text
        assert 'href="/admin/lowkiq/dashboard/"' in page
        assert "/admin/lowkiq/dashboard/add/" not in page
    assert browser_of("root").get("/admin/lowkiq/dashboard/").headers["location"] == f"{PREFIX}/"
    assert "lowkiq" not in browser_of("stranger").get("/admin/").text


def test_the_model_has_no_table_and_no_command_asks_for_one(django_shop, people, capsys):
    from django.core.management import call_command

    call_command("dumpdata", "lowkiq", use_base_manager=True)
    assert capsys.readouterr().out == "[]"
    call_command("makemigrations", "lowkiq", check=True, dry_run=True)
