"""The examples: the dashboard within other applications, under a prefix that all its links have."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from tests.web.pages import token

PREFIX = "/ops/queues"
ORIGIN = "http://localhost:8000"


@pytest.fixture
def fastapi(shop):
    from examples.dashboard.with_fastapi import api

    return TestClient(api, base_url=ORIGIN, follow_redirects=False)


@pytest.fixture
def flask(shop):
    """Served as WSGI; the client speaks ASGI, so the way there is taken back."""
    from a2wsgi import WSGIMiddleware

    from examples.dashboard.with_flask import site

    return TestClient(WSGIMiddleware(site), base_url=ORIGIN, follow_redirects=False)


@pytest.fixture
def django(django_shop):
    from django.contrib.auth import get_user_model, login
    from django.contrib.sessions.backends.db import SessionStore
    from django.test import RequestFactory

    from examples.dashboard import with_django

    request = RequestFactory().get("/")
    request.session = SessionStore()
    user, _ = get_user_model().objects.get_or_create(username="ops", is_superuser=True)
    login(request, user)
    request.session.save()
    browser = TestClient(with_django.application, base_url=ORIGIN, follow_redirects=False)
    browser.cookies.set("sessionid", request.session.session_key)
    return browser


@pytest.fixture(params=["fastapi", "flask", "django"])
def browser(request):
    found = request.getfixturevalue(request.param)
    if request.param != "django":
        found.auth = ("ops", "secret")
    return found


def test_the_application_itself_is_there(browser):
    assert browser.get("/").json() == {"dashboard": f"{PREFIX}/"}


@pytest.mark.parametrize(
    "browser",
    ["fastapi", *(pytest.param(name, marks=pytest.mark.full) for name in ("flask", "django"))],
    indirect=True,
)
def test_every_link_of_every_page_stays_under_the_prefix(browser, shop):
    shop.sync_order.apply_async(("42", {"status": "paid"}), countdown=60)
    seen, to_see = set(), [f"{PREFIX}/"]
    while to_see:
        path = to_see.pop()
        seen.add(path)
        page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        if "html" not in page.headers["content-type"]:
            continue
        targets = re.findall(r'(href|src|action)="([^"#]+)', page.text.replace("&amp;", "&"))
        outside = [target for _, target in targets if not target.startswith(f"{PREFIX}/")]
        assert outside == [], path
        to_see += {target for kind, target in targets if kind != "action"} - seen - set(to_see)
    assert f"{PREFIX}/job?queue=examples.dashboard.shop.sync_order&id=42" in seen


def test_a_change_works_under_the_prefix(browser, shop):
    shop.sync_order.apply_async(("43", "x"), countdown=60)
    form = {"queue": shop.sync_order.name, "action": "run_now_all", "back": "/nodes", "confirmed": "1"}
    form["token"] = token(browser, PREFIX)
    answer = browser.post(f"{PREFIX}/change", data=form, headers={"origin": ORIGIN})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(f"{PREFIX}/nodes?did=")


def test_without_the_password_nothing_is_shown(fastapi, flask):
    for browser in (fastapi, flask):
        assert browser.get(f"{PREFIX}/").status_code == 401
