"""What viewers and operators may do, who is one, and what they see of secrets."""

from __future__ import annotations

import base64
import logging

import pytest
import redis
from starlette.testclient import TestClient

from celery_lowkiq import track
from celery_lowkiq.integration.audit import Audit
from celery_lowkiq.integration.json_records import mark_of_bytes
from celery_lowkiq.integration.settings import SETTINGS
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.store import actions
from celery_lowkiq.store.keys import AUDIT_KEY, TrackerKeys
from celery_lowkiq.web import User, make_app
from celery_lowkiq.web.auth import BURST, EVERY, LoginTries, address_of
from celery_lowkiq.web.errors import Refused
from tests.web.conftest import LOCAL
from tests.web.pages import ORIGIN, read_plain, submit, token
from tests.web.test_hostile import plant

LOGINS = ["vera:secret-v", "olga:secret-o", "eve:secret-e"]
ROLES = {"vera": "viewer", "olga": "operator"}
VERA, OLGA = ("vera", "secret-v"), ("olga", "secret-o")
PAYLOAD = {"id": 1, "card": {"number": "4111-1111"}, "user": {"Password": "hunter2"}}
PAGES = (
    "/queue?queue=record",
    "/job?queue=record&id=1",
    "/api/v1/jobs?queue=record",
    "/api/v1/job?queue=record&id=1",
)


@pytest.fixture
def is_refused(app, visit):
    """Check that a value of a setting is refused, and return the error."""

    def check(name, value):
        app.conf[name] = value
        with pytest.raises(ConfigurationError, match=name) as caught:
            visit()
        app.conf[name] = SETTINGS[name.removeprefix("lowkiq_")].default
        return str(caught.value)

    return check


@pytest.fixture
def staff(app, visit):
    """A browser of a user of this name."""
    app.conf.lowkiq_web_auth = LOGINS
    app.conf.lowkiq_web_roles = ROLES

    def browser(login):
        found = visit()
        found.auth = login
        return found

    return browser


def change(browser, action="run_now_all", **fields):
    fields = {"queue": "record", "action": action, "wait": 10, **fields}
    return browser.post("/api/v1/changes", json=fields)


# -- roles


def test_a_viewer_reads_and_changes_nothing(staff, record, caplog):
    record.apply_async(("1", "x"), countdown=1000)
    browser = staff(VERA)
    for path in PAGES:
        page = browser.get(path)
        assert page.status_code == 200
        assert 'method="post"' not in page.text
    with caplog.at_level(logging.WARNING, "celery_lowkiq.audit"):
        assert submit(browser, "delete", "1", confirmed="1").status_code == 403
        assert change(browser).status_code == 403
        assert browser.delete("/api/v1/operations/x").status_code == 403
    assert "refused: user='vera' from=127.0.0.1 POST '/api/v1/changes'" in caplog.text.replace(
        "'127.0.0.1'", "127.0.0.1"
    )
    assert record.ordered_queue.stats().length == 1


def test_an_operator_changes(staff, record):
    record.apply_async(("1", "x"), countdown=1000)
    assert change(staff(OLGA)).json()["state"] == "done"
    assert 'method="post"' in staff(OLGA).get("/queue?queue=record").text


def test_a_user_without_a_role_is_refused(staff):
    answer = staff(("eve", "secret-e")).get("/")
    assert answer.status_code == 403
    assert "has no role" in answer.text


def test_everybody_else_may_have_a_role(staff, app):
    app.conf.lowkiq_web_roles = {**ROLES, "*": "viewer"}
    assert staff(("eve", "secret-e")).get("/").status_code == 200
    assert change(staff(("eve", "secret-e"))).status_code == 403
    assert change(staff(OLGA)).status_code == 200


def test_a_password_is_of_its_own_user(staff):
    for login in (("vera", "secret-o"), ("olga", "secret-v"), ("nobody", "secret-o"), ("vera", "")):
        assert staff(login).get("/").status_code == 401


@pytest.mark.parametrize(
    "roles", [{"a": "admin"}, {"": "viewer"}, {"a": None}, ["viewer"], {1: "viewer"}, "viewer"]
)
def test_a_role_that_does_not_exist_is_refused(is_refused, roles):
    assert "'viewer' or 'operator'" in is_refused("lowkiq_web_roles", roles)


def test_several_passwords_of_the_environment(visit, monkeypatch):
    monkeypatch.setenv("LOWKIQ_WEB_AUTH", "vera:a\nolga:b")
    for login in (("vera", "a"), ("olga", "b")):
        assert visit().get("/", auth=login).status_code == 200


@pytest.mark.parametrize("logins", [["a:1", "a:2"], ["a:1", "b"], ["hunter2"], "hunter2:", 7])
def test_wrong_passwords_of_the_settings_are_not_quoted(is_refused, logins):
    assert "hunter2" not in is_refused("lowkiq_web_auth", logins)


@pytest.mark.parametrize(
    "roles, status", [(ROLES.get, 403), (lambda name: None, 403), ({"vera": "operator"}, 200)]
)
def test_a_function_or_a_mapping_decides(visit, roles, status):
    browser = visit(auth="vera:x", roles=roles)
    browser.auth = ("vera", "x")
    assert change(browser).status_code == status


@pytest.mark.parametrize(
    "user, status",
    [
        (User("anna", "viewer"), 403),
        (User("anna", "operator"), 200),
        (User("anna"), 200),
        (User("anna", "root"), 403),
    ],
)
def test_authentication_of_ones_own_returns_the_role(visit, user, status):
    assert change(visit(auth=lambda request: user)).status_code == status


# -- proxies


def test_only_a_trusted_proxy_names_a_user(app):
    dashboard = make_app(app, user_header="X-User", trusted_proxies=["10.0.0.0/8"])
    headers = {"x-user": "anna", "x-forwarded-for": "203.0.113.9"}
    for client, status in (
        ("10.1.2.3", 200),
        ("127.0.0.1", 403),
        ("192.0.2.1", 403),
        ("::ffff:10.0.0.1", 200),
    ):
        browser = TestClient(dashboard, base_url="http://ops", client=(client, 1))
        assert browser.get("/", headers=headers).status_code == status
    twice = [("x-user", "anna"), ("x-user", "root")]
    assert TestClient(dashboard, client=("10.1.2.3", 1)).get("/", headers=twice).status_code == 403


@pytest.mark.parametrize("given, status", [("s3cret", 200), ("wrong", 403), ("", 403), (None, 403)])
def test_a_proxy_is_known_by_its_secret(app, visit, given, status):
    app.conf.lowkiq_web_proxy_secret = "s3cret"
    headers = {"x-user": "anna"} | ({} if given is None else {"x-lowkiq-proxy-secret": given})
    assert visit(user_header="X-User").get("/", headers=headers).status_code == status


@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"]])
@pytest.mark.parametrize(
    "given, address", [(None, "10.0.0.7"), ("wrong", "10.0.0.7"), ("sesame", "192.0.2.1")]
)
def test_without_its_secret_a_proxy_says_nothing_of_the_browser(app, networks, given, address):
    """An address of the network was enough to choose that of wrong passwords and of the audit log."""
    app.conf.lowkiq_web_proxy_secret = "sesame"
    asked = []
    dashboard = make_app(
        app, auth=lambda request: asked.append(address_of(request)), trusted_proxies=networks
    )
    headers = {"x-forwarded-for": "192.0.2.9, 192.0.2.1"}
    headers |= {} if given is None else {"x-lowkiq-proxy-secret": given}
    TestClient(dashboard, **{**LOCAL, "client": ("10.0.0.7", 1)}).get("/", headers=headers)
    assert asked == [address]


def test_a_header_without_a_trusted_proxy_is_no_authentication(visit):
    with pytest.raises(ConfigurationError, match="lowkiq_web_trusted_proxies"):
        visit(user_header="X-User")


@pytest.mark.parametrize("networks", [["10.0.0.0/8", "x"], ["10.0.0.1/8"], "10.0.0.1", [1]])
def test_networks_that_make_no_sense(is_refused, networks):
    assert "10.0.0.0/8" in is_refused("lowkiq_web_trusted_proxies", networks)


def test_a_trusted_proxy_says_where_the_browser_is(app, record):
    """What the browser writes itself at the left counts for nothing."""
    dashboard = make_app(app, user_header="X-User", trusted_proxies=["10.0.0.0/8"])
    browser = TestClient(dashboard, base_url="http://ops", client=("10.1.2.3", 1))
    browser.headers |= {"x-user": "anna", "x-forwarded-for": "127.0.0.1, 203.0.113.9, 10.9.9.9"}
    assert change(browser).status_code == 200
    assert {entry.address for entry in Audit(app).read().items} == {"203.0.113.9"}
    assert {entry.user for entry in Audit(app).read().items} == {"anna"}


FORWARDED = [
    {"x-forwarded-for": "203.0.113.9"},
    {"X-Forwarded-Host": "ops.example"},
    {"Forwarded": "for=203.0.113.9"},
    {"Via": "1.1 proxy"},
    {"X-Real-IP": "127.0.0.1"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=str)
def test_a_proxy_on_this_machine_is_not_local(browser, headers):
    """S3: it renames the host to localhost, so a page without a password looked local."""
    assert browser.get("/").status_code == 200
    assert browser.get("/", headers=headers).status_code == 403


# -- wrong passwords


def test_wrong_passwords_are_limited_by_address(app):
    dashboard = make_app(app, auth="ops:secret")
    attacker = TestClient(dashboard, client=("192.0.2.1", 1))
    answers = [attacker.get("/", auth=("ops", str(number))).status_code for number in range(BURST + 2)]
    assert answers == [401] * BURST + [429] * 2
    refused = attacker.get("/", auth=("ops", "secret"))
    assert refused.status_code == 429, "it tells that the password is right"
    assert 0 < int(refused.headers["retry-after"]) <= EVERY
    other = TestClient(dashboard, client=("192.0.2.2", 1))
    assert other.get("/", auth=("ops", "secret")).status_code == 200
    assert attacker.get("/healthz").status_code == 200


def test_a_server_of_both_versions_of_ip_keeps_addresses_apart():
    """All of IPv4 was one address there: wrong passwords of anybody shut out everybody."""
    tries = LoginTries()
    for _ in range(BURST):
        tries.failed("::ffff:192.0.2.1")
    tries.check("::ffff:192.0.2.2")
    for same in ("::ffff:192.0.2.1", "192.0.2.1"):
        with pytest.raises(Refused, match="too many wrong passwords"):
            tries.check(same)


def test_a_page_without_a_password_is_no_try(app):
    attacker = TestClient(make_app(app, auth="ops:secret"), client=("192.0.2.1", 1))
    for _ in range(BURST + 1):
        assert attacker.get("/").status_code == 401
    assert attacker.get("/", auth=("ops", "secret")).status_code == 200


def test_tries_come_back_and_memory_is_bounded():
    now = 0.0
    tries = LoginTries(lambda: now, most=100)
    for _ in range(BURST):
        tries.check("2001:db8::1")
        tries.failed("2001:db8::1")
    with pytest.raises(Refused, match="too many wrong passwords"):
        tries.check("2001:db8::ffff")
    tries.check("2001:db8:1::1")
    now += EVERY
    tries.check("2001:db8::1")
    for number in range(1000):
        tries.failed(f"192.0.2.{number}")
    assert len(tries._full_at) == 100


# -- secrets


def test_secrets_are_masked_on_pages_and_in_the_api(staff, record):
    record.apply_async(("1", PAYLOAD), countdown=1000)
    for login in (VERA, OLGA):
        for path in PAGES:
            text = staff(login).get(path).text
            assert "[redacted]" in text
            assert "4111" not in text
            assert "hunter2" not in text
    (payload,) = staff(VERA).get(PAGES[3]).json()["waiting"]["payloads"]
    assert payload["value"] == {"card": "[redacted]", "id": 1, "user": {"Password": "[redacted]"}}
    assert payload["redacted"] is True


def test_a_cut_payload_is_masked(staff, record):
    record.apply_async(("1", {"a": "x" * 3000, "b": "password=hunter2"}), countdown=1000)
    record.apply_async(("2", {"Password": "hunter2" * 1000}), countdown=1000)
    for path in ("/queue?queue=record", "/api/v1/jobs?queue=record"):
        page = staff(VERA).get(path)
        assert "hunter2" not in page.text
        assert base64.b64encode(b"hunter2")[:8].decode() not in page.text


def test_bytes_that_nobody_can_read_are_masked(staff, record, client):
    plant(client, record.ordered_queue, "1", b"\x01application/x-unknown\0binary\0password hunter2")
    for path in PAGES:
        text = staff(VERA).get(path).text
        assert "hunter2" not in text
        assert base64.b64encode(b"hunter2")[:8].decode() not in text


def test_a_key_that_is_there_twice_hides_nothing(staff, record, client):
    plant(client, record.ordered_queue, "1", b'{"a":{"password":"hunter2"},"a":1}')
    plant(client, record.ordered_queue, "2", b'{"pass\\u0077ord":"hunter2"}')
    for number in (1, 2):
        assert "hunter2" not in staff(VERA).get(f"/job?queue=record&id={number}").text


def of_the_api(browser, job_id):
    return browser.post("/api/v1/job", json={"queue": "record", "id": job_id})


@pytest.mark.parametrize("read", [read_plain, of_the_api])
def test_operators_see_secrets_when_they_ask_and_the_log_says_so(app, staff, record, read):
    record.apply_async(("1", PAYLOAD), countdown=1000)
    assert "hunter2" in read(staff(OLGA), "1").text
    refused = read(staff(VERA), "1")
    assert refused.status_code == 403
    assert "hunter2" not in refused.text
    (entry,) = Audit(app).read().items
    assert (entry.user, entry.action, entry.ids) == ("olga", "read_plain", ("1",))


def test_secrets_are_offered_only_where_something_is_masked(staff, record):
    """Each look is an entry of the audit log."""
    record.apply_async(("1", PAYLOAD), countdown=1000)
    record.apply_async(("2", {"id": 2}), countdown=1000)
    assert "Show secrets" in staff(OLGA).get("/job?queue=record&id=1").text
    assert "Mask secrets" in read_plain(staff(OLGA), "1").text
    assert "Show secrets" not in staff(OLGA).get("/job?queue=record&id=2").text


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_payload_with_masks_has_no_digest_for_those_who_see_no_secrets(visit, record, role):
    """It was that of the whole payload, by which a PIN can be guessed."""
    record.apply_async(("1", {"id": 1, "token": "4711"}), countdown=1000)
    record.apply_async(("2", {"id": 2}), countdown=1000)
    browser = visit(auth=lambda request: User("vera", role, sees_plain=False))
    for path in ("/api/v1/jobs?queue=record", PAGES[3], "/api/v1/job?queue=record&id=2"):
        found = browser.get(path).json()
        for job in found["items"] if "items" in found else [found["waiting"]]:
            (payload,) = job["payloads"]
            assert (payload["mark"] is None) == payload["redacted"] == (job["id"] == "1")
    digest = mark_of_bytes(b'{"id": 1, "token": "4711"}').partition("-")[0]
    for path in PAGES:
        assert digest not in browser.get(path).text


def test_the_editor_is_for_those_who_see_secrets(visit, record):
    record.apply_async(("1", PAYLOAD), countdown=1000)
    browser = visit(auth=lambda request: User("anna", "operator", sees_plain=False))
    found = visit(auth=lambda request: User("olga")).get(PAGES[3]).json()
    (payload,) = found["waiting"]["payloads"]
    assert "Edit" not in browser.get(PAGES[1]).text
    assert read_plain(browser, "1", edit=payload["mark"]).status_code == 403
    refused = change(browser, "edit_payload", ids=["1"], mark=payload["mark"], value={"id": 2})
    assert refused.status_code == 403
    assert record.ordered_queue.job("1").waiting.payloads[0].value == PAYLOAD
    assert change(browser, "delete", ids=["1"]).status_code == 200


def test_a_mask_is_never_saved(app, staff, record):
    record.apply_async(("1", PAYLOAD), countdown=1000)
    browser = staff(OLGA)
    (payload,) = browser.get(PAGES[3]).json()["waiting"]["payloads"]
    given = {"ids": ["1"], "mark": payload["mark"]}
    answer = change(browser, "edit_payload", value=payload["value"], **given).json()
    assert answer["state"] == "failed"
    assert "[redacted]" in answer["error"]
    assert record.ordered_queue.job("1").waiting.payloads[0].value == PAYLOAD
    page = read_plain(browser, "1", edit=payload["mark"]).text
    assert "hunter2" in page
    new = {**PAYLOAD, "id": 2}
    assert change(browser, "edit_payload", value=new, **given).json()["count"] == 1
    assert record.ordered_queue.job("1").waiting.payloads[0].value == new


def test_without_names_nothing_is_masked(app, staff, record):
    app.conf.lowkiq_redact = ()
    record.apply_async(("1", PAYLOAD), countdown=1000)
    for path in PAGES:
        assert "hunter2" in staff(VERA).get(path).text


# -- audit log


def test_the_audit_log_says_what_changed_without_secrets(app, staff, record, caplog):
    caplog.set_level(logging.INFO, "celery_lowkiq.audit")
    record.apply_async(("1", PAYLOAD), countdown=1000)
    browser = staff(OLGA)
    (payload,) = browser.get(PAGES[3]).json()["waiting"]["payloads"]
    new = {"id": 2, "card": "5500"}
    change(browser, "edit_payload", ids=["1"], mark=payload["mark"], value=new, reason="token=abcd is old")
    done, begun = staff(VERA).get("/api/v1/audit").json()["items"]
    assert (begun["state"], done["state"], done["jobs"]) == ("begins", "done", 1)
    assert (done["user"], done["address"], done["action"], done["ids"]) == (
        "olga",
        "127.0.0.1",
        "edit_payload",
        ["1"],
    )
    assert done["reason"] == "token=[redacted] is old"
    assert done["what"] == (
        '{"card": "[redacted]", "id": 1, "user": {"Password": "[redacted]"}}'
        ' -> {"id": 2, "card": "[redacted]"}'
    )
    for text in (caplog.text, staff(VERA).get("/audit").text):
        assert "edit_payload" in text
        assert not any(secret in text for secret in ("4111", "5500", "hunter2", "abcd"))


@pytest.mark.parametrize("user", ["\U0001f600" * 200, "\udc80" * 200, "\x1b" * 200])
def test_long_names_keep_no_change_out_of_the_audit_log(app, visit, record, client, user):
    """Their entry was too long for Redis: the change failed with a 500."""
    with track("fine", app) as tracker:
        record.apply_async(("1", "x"), countdown=1000, tracker=tracker)
    client.hset(TrackerKeys(tracker.id)["tracker"], "name", "\U0001f600" * 10_000)
    browser = visit(auth=lambda request: User(user))
    assert browser.delete(f"/api/v1/trackers/{tracker.id}").status_code == 200
    assert change(browser, ids=[], reason="r" * 200).json()["state"] == "done"
    entries = Audit(app).read().items
    assert [entry.action for entry in entries] == ["run_now_all", "run_now_all", "cancel", "cancel"]
    assert {entry.user for entry in entries} == {user}


def test_the_audit_log_is_bounded(app, staff, record, monkeypatch):
    monkeypatch.setattr(actions, "KEPT", 100)
    browser = staff(OLGA)
    for _ in range(120):
        change(browser, ids=[], reason="r" * 200)
    found = Audit(app)
    page = found.read(1000)
    assert 100 <= len(page.items) < 100 + 101
    first = found.read(10)
    assert found.read(10, first.next).items == page.items[10:20]
    text = browser.get("/audit").text
    assert "Next page" in text


def test_what_is_no_entry_of_the_audit_log_is_shown(staff, client):
    for text in (b"\xff", b"[", b"[]", b'{"ids": 1, "shard": "x", "user": {"a": "<script>"}}', b"{}"):
        client.xadd(AUDIT_KEY, {"text": text})
    client.xadd(AUDIT_KEY, {"other": "x"})
    assert staff(VERA).get("/audit").status_code == 200
    assert "<script>" not in staff(VERA).get("/audit").text.partition("<main")[2]
    assert len(staff(VERA).get("/api/v1/audit").json()["items"]) == 6
    assert staff(VERA).get("/audit?after=x").status_code == 400


def test_redis_without_room_for_the_log_keeps_no_change_from_happening(
    app, staff, record, redis_server, caplog
):
    record.apply_async(("1", "x"), countdown=1000)
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.set(AUDIT_KEY, "of another type")
    assert change(staff(OLGA), "delete", ids=["1"]).json()["count"] == 1
    assert "in no audit log of Redis" in caplog.text


def test_a_form_still_needs_the_origin(staff):
    browser = staff(OLGA)
    form = {"token": token(browser), "queue": "record", "action": "run_now_all", "confirmed": "1"}
    assert browser.post("/change", data=form, headers={"origin": ORIGIN}).status_code == 303
    assert browser.post("/change", data=form, headers={"origin": "https://evil.example"}).status_code == 403
