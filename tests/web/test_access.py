"""Who may see the dashboard, who may change something, and from where."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from celery_lowkiq import track
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.audit import Audit
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.web import make_app
from celery_lowkiq.web.auth import is_loopback
from tests.web.conftest import LOCAL
from tests.web.pages import ORIGIN, submit, token

SECRET = "s3cret:with:colons"


def test_without_authentication_this_machine_is_answered(browser):
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize(
    "other",
    [
        {"client": ("10.0.0.7", 1)},
        {"base_url": "http://rebound.example:5556"},
        {"base_url": "http://10.0.0.1"},
    ],
    ids=["from elsewhere", "by a name of somebody else's", "by another address"],
)
def test_without_authentication_nobody_else_is(app, other):
    stranger = TestClient(make_app(app), **{**LOCAL, **other})
    answer = stranger.get("/")
    assert answer.status_code == 403
    assert "LOWKIQ_WEB_AUTH" in answer.text


OF_PROXIES = """
    Forwarded Via X-Forwarded-For X-Forwarded X-Real-IP X-Client-IP X-Cluster-Client-IP
    X-Originating-IP X-Remote-IP X-Remote-Addr X-Remote-User X-Original-URL X-Original-Forwarded-For
    X-Rewrite-URL X-Scheme X-Request-ID X-Auth-Request-User X-WebAuth-User X-Arr-Log-Id X-Azure-Ref
    X-Appengine-Country X-Varnish X-Cloud-Trace-Context X-B3-TraceId X-Vercel-Id Traceparent CF-Ray
    CDN-Loop Fastly-Client-IP Fly-Client-IP True-Client-IP Client-IP Remote-User Proxy-Connection
    Surrogate-Capability Tailscale-User-Login
"""


@pytest.mark.parametrize("name", OF_PROXIES.split())
def test_a_request_with_a_header_of_a_proxy_is_not_local(browser, name):
    assert browser.get("/", headers={name: "1"}).status_code == 403


def test_what_pages_and_browsers_send_is_local(browser):
    """As Chromium and Firefox send them."""
    sent = {
        "X-Requested-With": "XMLHttpRequest",
        "Sec-Fetch-Site": "none",
        "Sec-CH-UA-Platform": "Linux",
        "Sec-GPC": "1",
        "Upgrade-Insecure-Requests": "1",
        "DNT": "1",
        "Priority": "u=0, i",
        "Referer": "http://localhost:5556/",
        "Accept-Language": "en",
        "Cache-Control": "max-age=0",
        "If-None-Match": "x",
    }
    assert browser.get("/", headers=sent).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:", "LOCALHOST.:5556", "127.0.0.1:80", "[::1]:5556"])
def test_names_of_this_machine(browser, host):
    assert browser.get("/", headers={"host": host}).status_code == 200


HOSTS = (
    "rebound.example:  rebound.example:70000  rebound.example:x  [::1  [  ::1  localhost@x  x@localhost  "
    "x\\@localhost  localhost/  localhost x  localhost:5556:1  [localhost]x"
)


@pytest.mark.parametrize("host", ["", " ", *HOSTS.split("  ")])
def test_a_host_that_makes_no_sense_is_not_this_machine(browser, host):
    """Not even where the server's own address is."""
    assert browser.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/queue?queue=record", "/api/v1/stats", "/static/app.js", "/nowhere"])
def test_a_password_is_asked_for(visit, path):
    browser = visit(auth=f"ops:{SECRET}")
    asked = browser.get(path)
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert browser.get(path, auth=("ops", "wrong")).status_code == 401
    assert browser.get(path, auth=("ops", SECRET)).status_code in (200, 404)


@pytest.mark.parametrize("given", ["Basic", "Basic !", "Basic bm9jb2xvbg==", "Bearer x", "Basic \xe9"])
def test_a_broken_password_is_no_password(visit, given):
    answer = visit(auth="ops:secret").get("/", headers={"authorization": given.encode("latin-1")})
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_password(visit, path):
    assert visit(auth="ops:secret").get(path).status_code == 200


def test_the_password_of_the_environment(visit, monkeypatch):
    monkeypatch.setenv("LOWKIQ_WEB_AUTH", "ops:secret")
    assert visit().get("/").status_code == 401


def test_the_password_of_the_settings(app, visit):
    app.conf.lowkiq_web_auth = "ops:secret"
    browser = visit()
    assert browser.get("/").status_code == 401
    assert browser.get("/", auth=("ops", "secret")).status_code == 200
    assert "ops:secret" not in repr(context_of(app).settings)


@pytest.mark.parametrize("text", ["nocolon-hunter2", ":hunter2", "hunter2:"])
def test_a_password_that_is_none_is_refused_and_not_quoted(visit, text):
    with pytest.raises(ConfigurationError, match="user:password") as caught:
        visit(auth=text)
    assert "hunter2" not in str(caught.value)


def test_a_proxys_header_names_the_user(visit):
    browser = visit(user_header="X-Forwarded-User", trusted_proxies=["127.0.0.1"])
    assert browser.get("/").status_code == 403
    assert "anna" in browser.get("/", headers={"x-forwarded-user": "anna"}).text


def now(request):
    return request.query_params.get("who")


async def later(request):
    return request.query_params.get("who")


class Finder:
    async def __call__(self, request):
        return await later(request)


@pytest.mark.parametrize(
    "find",
    [now, later, partial(later), lambda request: later(request), Finder()],
    ids=["a function", "async", "of a partial", "what a function returns", "of an object"],
)
def test_a_function_finds_the_user(visit, find):
    browser = visit(auth=find)
    assert browser.get("/").status_code == 403
    assert "anna" in browser.get("/?who=anna").text


@pytest.mark.parametrize("user", [True, 1, ["anna"], b"anna", SimpleNamespace(name="anna")])
def test_what_is_no_name_lets_nobody_in(visit, user):
    answer = visit(auth=lambda request: user).get("/")
    assert answer.status_code == 403
    assert type(user).__name__ in answer.text


def test_a_read_only_dashboard_changes_nothing_and_offers_nothing(app, visit):
    app.tasks["record"].delay("1", "x")
    browser = visit(read_only=True)
    text = browser.get("/queue?queue=record").text
    assert "read-only" in text
    assert 'method="post"' not in text
    answer = submit(browser, "run_now_all", confirmed="1")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"origin": ORIGIN}, 303),
        ({}, 303),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "null", "host": ""}, 403),
        ({"origin": "http://[x"}, 403),
        ({"origin": "http://", "host": ""}, 403),
        # S3: only the host was compared.
        ({"origin": "https://localhost:5556"}, 403),
        ({"origin": "https://localhost:5556", "x-forwarded-proto": "https"}, 403),
        # S3: behind a proxy on the same machine that renames the host, a request looked like a local one.
        ({"origin": ORIGIN, "x-forwarded-proto": "https"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:80"}, 403),
    ],
)
def test_a_change_comes_from_the_dashboard_itself(browser, headers, status):
    form = {"token": token(browser), "queue": "record", "action": "run_now_all", "confirmed": "1"}
    assert browser.post("/change", data=form, headers=headers).status_code == status


@pytest.mark.parametrize("scheme, status", [("https", 303), ("http", 403)])
def test_s3_a_proxy_that_is_trusted_says_the_scheme(app, scheme, status):
    """S3: of a page that came by https, a change by http was taken."""
    trusting = ProxyHeadersMiddleware(make_app(app, auth="ops:secret"), trusted_hosts="127.0.0.1")
    browser = TestClient(trusting, follow_redirects=False, **LOCAL)
    browser.auth = ("ops", "secret")
    browser.headers["x-forwarded-proto"] = "https"
    form = {"token": token(browser), "queue": "record", "action": "run_now_all", "confirmed": "1"}
    headers = {"origin": f"{scheme}://localhost:5556", "cookie": f"lowkiq_token={form['token']}"}
    assert browser.post("/change", data=form, headers=headers).status_code == status


def test_a_proxy_may_rename_the_host(visit):
    browser = visit(origins=["https://ops.example"])
    form = {"token": token(browser), "queue": "record", "action": "run_now_all", "confirmed": "1"}
    headers = {"origin": "https://ops.example", "sec-fetch-site": "same-origin"}
    assert browser.post("/change", data=form, headers=headers).status_code == 303


@pytest.mark.parametrize("wrong", ["", "x" * 32, "ü"])
def test_a_form_without_the_sessions_token_is_refused(browser, wrong):
    token(browser)
    form = {"token": wrong, "queue": "record", "action": "run_now_all", "confirmed": "1"}
    assert browser.post("/change", data=form, headers={"origin": ORIGIN}).status_code == 403


def test_no_get_changes_anything_in_redis(app, browser, record, client):
    """Another site can have a browser send it, with the credentials that it keeps."""
    record.apply_async(("1", {"password": "hunter2"}), countdown=1000)
    (payload,) = browser.get("/api/v1/job?queue=record&id=1").json()["waiting"]["payloads"]
    with track("a group", app) as tracker:
        pass
    asked = f"queue=record&id=1&plain=1&edit={payload['mark']}&list=jobs&failure=x&confirmed=1&action=delete"
    paths = [route.path for route in make_app(app).routes if "GET" in (getattr(route, "methods", None) or ())]
    before = client.info("persistence")["rdb_changes_since_last_save"]
    for path in paths:
        path = path.replace("{id}", tracker.id)
        for query in (asked, asked.replace("id=1&", f"id={tracker.id}&")):
            browser.get(f"{path}?{query}", headers={"sec-fetch-site": "cross-site"})
    assert client.info("persistence")["rdb_changes_since_last_save"] == before
    assert "hunter2" not in browser.get(f"/job?{asked}").text
    assert Audit(app).read().items == ()


@pytest.mark.parametrize(
    "headers, wrong", [({}, ""), ({"sec-fetch-site": "cross-site"}, None), ({"origin": "null"}, None)]
)
def test_no_other_site_reads_a_payload_in_the_name_of_a_user(app, visit, record, headers, wrong):
    record.apply_async(("1", {"password": "hunter2"}), countdown=1000)
    browser = visit(auth="ops:secret")
    browser.auth = ("ops", "secret")
    form = {"token": token(browser) if wrong is None else wrong, "queue": "record", "id": "1", "plain": "1"}
    assert browser.post("/job", data=form, headers=headers).status_code == 403
    as_text = {"content-type": "text/plain", **headers}
    answer = browser.post("/api/v1/job", content='{"queue": "record", "id": "1"}', headers=as_text)
    assert answer.status_code in (403, 415)
    assert Audit(app).read().items == ()


@pytest.mark.parametrize("given", ["", "None"])
@pytest.mark.parametrize("path", ["/change", "/cancel", "/tracker/cancel"])
def test_no_cookie_is_no_token(browser, path, given):
    assert not browser.cookies
    form = {"token": given, "queue": "record", "action": "run_now_all", "id": "x"}
    assert browser.post(path, data=form).status_code == 403


def test_a_cookie_of_another_app_hides_no_token(browser):
    """Beside one that is not in the form of RFC 6265, no cookie was found, and every form was refused."""
    form = {"token": token(browser), "queue": "record", "action": "run_now_all", "confirmed": "1"}
    cookies = f'prefs={{"a":1}}; lowkiq_token={form["token"]}'
    headers = {"origin": ORIGIN, "cookie": cookies}
    assert browser.post("/change", data=form, headers=headers).status_code == 303


def test_the_cookie_is_for_our_pages_only(browser):
    cookie = browser.get("/").headers["set-cookie"]
    for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert word in cookie


def test_a_request_that_is_too_large_is_refused(browser):
    data = b"token=x&pad=" + b"x" * 5_000_000
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert browser.post("/change", content=data, headers=kind).status_code == 413


@pytest.mark.parametrize("path", ["/", "/healthz", "/nodes/", "/api/v1/jobs"])
def test_a_query_that_is_no_text_is_refused(browser, path):
    """Starlette failed to decode it: 500, and a traceback in the log."""
    scope = {"query_string": b"queue=record&id=\xf5"}

    async def asked(given, receive, send):
        await browser.app({**given, **scope}, receive, send)

    answer = TestClient(asked, follow_redirects=False, **LOCAL).get(path)
    assert answer.status_code == 400
    assert "expected ASCII" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org"])
def test_not_loopback(host):
    assert not is_loopback(host)
