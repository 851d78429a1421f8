"""Requests to the dashboard and the JSON API: no 500, no error in the log, nobody let in."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import dataclass, replace
from urllib.parse import quote_from_bytes, unquote, urlencode

import pytest

from celery_lowkiq import track
from celery_lowkiq.integration.actions import ACTIONS
from celery_lowkiq.web import forms as of_pages
from celery_lowkiq.web import make_app
from celery_lowkiq.web.app import ENDPOINTS
from celery_lowkiq.web.auth import COOKIE, PUBLIC
from celery_lowkiq.web.endpoints import BASE
from tests.fuzz.mutators import ODD_BYTES, canaries, changed_bytes, changed_value
from tests.worker import proj

PASSWORD = b"Basic " + base64.b64encode(b"ops:secret")
TOKEN = "t" * 32
FORM = (b"content-type", b"application/x-www-form-urlencoded")
JSON = (b"content-type", b"application/json")
HEADERS = (
    *(b"host", b"cookie", b"origin", b"sec-fetch-site", b"authorization", b"content-type", b"content-length"),
    *(b"transfer-encoding", b"range", b"accept", b"accept-encoding", b"if-none-match", b"if-modified-since"),
    *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-user", b"forwarded"),
    *(b"x-http-method-override", b"upgrade", b"expect", b"referer", b"user-agent"),
)
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "get",
    "\u0130",
    "",
)
#: What a server lets through in the value of a header.
PLAIN = bytes(byte for byte in range(256) if byte not in b"\r\n\0")


@dataclass(frozen=True)
class Ask:
    """A request, as a server hands it over."""

    method: str
    path: bytes
    query: bytes = b""
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def scope(self):
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(self.path.decode("latin-1")),
            "raw_path": self.path,
            "query_string": self.query,
            "root_path": "",
            "headers": [
                (name, bytes(byte for byte in value if byte in PLAIN)) for name, value in self.headers
            ],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 5556),
        }


USUAL = ((b"host", b"localhost:5556"), (b"cookie", f"{COOKIE}={TOKEN}".encode()))
SAME = (*USUAL, (b"origin", b"http://localhost:5556"), (b"sec-fetch-site", b"same-origin"))
OF_PAGES = {
    "/queue": [{"queue": "record", "list": name} for name in ("jobs", "retries", "morgue", "processing")]
    + [{"queue": "record", "list": name, "after": "1.5 a"} for name in ("shards", "paused", "held")]
    + [
        {
            "queue": "record",
            "by": "id",
            "prefix": "1",
            "minimum": "0",
            "maximum": "9",
            "limit": "5",
            "reverse": "1",
        }
    ],
    "/job": [{"queue": "record", "id": "1", "edit": "0" * 40}],
    "/failures": [{"queue": "record", "error": "Value*", "since": "1h", "failure": "0" * 12}],
    "/operation": [{"id": "1"}],
    "/tracker": [{"id": "0" * 32, "state": "waiting", "after": "1"}],
    "/trackers": [{"limit": "5", "after": "1.5 " + "0" * 32}],
    "/static/app.js": [{"v": "1"}],
    **{path: [{}] for path in ("/", "/nodes", "/doctor", "/operations", *PUBLIC)},
}
#: Values of parameters of the API.
GIVEN = {
    "queue": "record",
    "id": "1",
    "limit": "5",
    "after": "1.5 a",
    "list": "morgue",
    "by": "",
    "prefix": "1",
    "minimum": "0",
    "maximum": "9",
    "reverse": "1",
    "state": "waiting",
    "shards": "4",
    "error": "Value*",
    "since": "1h",
    "until": "1m",
    "failure": "0" * 12,
}
CHANGE = {"queue": "record", "ids": ["1"], "shard": 1, "mark": "0" * 40, "value": {"a": [1]}, "reason": "why"}
CHANGE |= {
    "limit": 5,
    "rate": "100/s",
    "error": "Value*",
    "since": "1h",
    "shards": 4,
    "wait": 0,
    "failure": "0",
}


def reads():
    for path, queries in OF_PAGES.items():
        yield from (Ask("GET", path.encode(), urlencode(query).encode(), b"", USUAL) for query in queries)
    for endpoint in ENDPOINTS:
        path = (BASE + endpoint.path).format(id="0" * 32).encode()
        query = urlencode({one.name: GIVEN.get(one.name, "1") for one in endpoint.query}).encode()
        if endpoint.method != "POST":
            yield Ask(endpoint.method, path, query, b"", SAME)


def forms():
    fields = {key: value for key, value in CHANGE.items() if key not in ("ids", "value", "wait")}
    fields |= {
        "id": "1",
        "token": TOKEN,
        "value": '{"a":[1]}',
        "confirmed": "1",
        "back": "/queue?queue=record",
    }
    for name in ACTIONS:
        body = urlencode({**fields, "action": name}).encode()
        yield Ask("POST", b"/change", b"", body, (*SAME, FORM))
    for path in (b"/cancel", b"/tracker/cancel"):
        yield Ask("POST", path, b"", urlencode({"token": TOKEN, "id": "0" * 32}).encode(), (*SAME, FORM))


def posted():
    return [{**CHANGE, "action": name} for name in ACTIONS]


SEEDS = [*reads(), *forms()]
POSTS = posted()


def changed(random, password):
    """A request with something wrong in it; half of those that need a password have it."""
    if random.random() < 0.25:
        body = json.dumps(changed_value(random, random.choice(POSTS)), default=repr).encode()
        ask = Ask("POST", f"{BASE}/changes".encode(), b"", body, (*SAME, JSON))
    else:
        ask = random.choice(SEEDS)
    if password is not None and random.random() < 0.5:
        ask = replace(ask, headers=(*ask.headers, (b"authorization", password)))
    for _ in range(random.choice((1, 1, 2))):
        ask = random.choice((_in_query, _in_query, _in_path, _in_body, _in_headers, _in_method))(random, ask)
    return ask


def _in_query(random, ask):
    fields = [field.partition(b"=") for field in ask.query.split(b"&")] or [(b"queue", b"=", b"record")]
    place = random.randrange(len(fields))
    name, _, value = fields[place]
    odd = random.choice((ODD_BYTES, canaries("/nowhere")))
    fields[place] = (name, b"=", quote_from_bytes(changed_bytes(random, value, odd)[:8000]).encode())
    fields += random.sample(fields, random.choice((0, 0, 1)))
    query = b"&".join(b"".join(field) for field in fields)
    return replace(ask, query=query if random.random() < 0.9 else changed_bytes(random, query)[:8000])


def _in_path(random, ask):
    odd = (
        b"..",
        b"%2e%2e%2f",
        b"../../setup.cfg",
        b"//evil.example",
        b"\\",
        b"\0",
        b"\r\nx: y",
        b"%00",
        b"*",
        b"\xff",
    )
    path = quote_from_bytes(changed_bytes(random, ask.path, odd)[:8000], safe="/%.").encode()
    return replace(ask, path=path if path.startswith(b"/") else b"/" + path)


def _in_body(random, ask):
    return replace(ask, body=changed_bytes(random, ask.body)) if ask.body else _in_query(random, ask)


def _in_headers(random, ask):
    headers = list(ask.headers)
    name = random.choice(HEADERS)
    known = dict(headers).get(name, b"1")
    headers = [header for header in headers if header[0] != name or random.random() < 0.2]
    if random.random() < 0.8:
        headers.append((name, changed_bytes(random, known)[:60_000]))
    return replace(ask, headers=tuple(headers))


def _in_method(random, ask):
    return replace(ask, method=random.choice(METHODS))


class Visitor:
    """Sends requests to a dashboard in this process."""

    def __init__(self, app, loop):
        self._app, self._loop = app, loop

    def ask(self, ask):
        """Status, headers and body of the answer."""
        sent = []
        halves = [ask.body[: len(ask.body) // 2], ask.body[len(ask.body) // 2 :]]

        async def receive():
            if not halves:
                # The client stays until it has its answer.
                await asyncio.Event().wait()
            body = halves.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(halves)}

        async def send(message):
            sent.append(message)

        self._loop.run_until_complete(asyncio.wait_for(self._app(ask.scope, receive, send), 30))
        assert sent[0]["type"] == "http.response.start", sent
        assert sent[-1]["type"] == "http.response.body", sent
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], dict(sent[0]["headers"]), body


@pytest.fixture
def app(settings, monkeypatch):
    """With a job, a dead one and a tracked one whose texts mean harm."""
    monkeypatch.setattr(of_pages, "PATIENCE", 0.2)
    app = proj.make_app(**settings)
    record = app.tasks["record"]
    record.apply_async(("1", {"a": "<script>alert(1)</script>"}), countdown=1000)
    record.apply_async(("<img src=x>", "x"), countdown=1000)
    record.ordered_queue.bury(["<img src=x>"])
    with track("<script>alert(1)</script>", app) as tracker:
        record.apply_async(("2", "x"), countdown=1000, tracker=tracker)
    yield app
    app.close()


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def check(ask, password, status, headers, body):
    assert status < 500, (ask, body[:500])
    for name, value in headers.items():
        assert not set(name + value) & set(b"\r\n\0"), (ask, headers)
    assert headers[b"x-content-type-options"] == b"nosniff", (ask, headers)
    location = headers.get(b"location", b"/")
    assert location[:2] not in (b"//", b"/\\"), (ask, headers)
    assert location[:1] == b"/" or location.startswith(b"http://localhost:5556/"), (ask, headers)
    if headers.get(b"content-type", b"").startswith(b"text/html"):
        assert b"<script>" not in body, ask
        assert b"<img" not in body, ask
    elif headers.get(b"content-type") == b"application/json" and body:
        json.loads(body)
    if password is not None and status < 400:
        public = ask.scope["path"] in PUBLIC
        assert public or (b"authorization", password) in ask.headers, ask


def check_log(ask, records):
    """No error, and no line that a request has broken or coloured."""
    wrong = [record for record in records if record.exc_info or record.levelno >= logging.ERROR]
    ours = (record for record in records if record.name.startswith("celery_lowkiq"))
    wrong += [record for record in ours if not record.getMessage().isprintable()]
    assert not wrong, (ask, wrong)


@pytest.mark.random
def test_hostile_requests(app, loop, caplog, fuzz):
    """To a dashboard for this machine, and to one with a password."""
    passwords = (None, PASSWORD)
    visitors = [
        Visitor(make_app(app, auth="ops:secret" if password else None), loop) for password in passwords
    ]
    caplog.set_level(logging.INFO, "celery_lowkiq")
    for ask in SEEDS:
        status, *_ = visitors[0].ask(ask)
        assert status < 500, ask

    def attack(random):
        which = random.randrange(2)
        ask = changed(random, passwords[which])
        caplog.clear()
        check(ask, passwords[which], *visitors[which].ask(ask))
        check_log(ask, caplog.records)

    fuzz(attack)
