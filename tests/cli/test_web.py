"""``celery lowkiq web``: the dashboard as a server of its own."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode

import pytest

from celery_lowkiq.web.auth import BURST
from tests.cli import proj
from tests.cli.conftest import start
from tests.waiting import eventually


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_without_a_password_it_binds_to_loopback_only(run, host):
    result = run("web", "--host", host)
    assert result.exit_code == 1
    assert f"--host {host}" in result.output
    assert "LOWKIQ_WEB_AUTH" in result.output


def test_a_password_that_is_none_is_refused(run, monkeypatch):
    monkeypatch.setenv("LOWKIQ_WEB_AUTH", "hunter2")
    result = run("web")
    assert result.exit_code == 1
    assert "user:password" in result.output
    assert "hunter2" not in result.output


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def options():
    return []


@pytest.fixture
def url(server, log, options):
    """Where the dashboard answers as a process of its own."""
    with log.open("wb") as out:
        process = start("web", "--port", "0", *options, stdout=out, stderr=subprocess.STDOUT)
    try:
        (url,) = eventually(lambda: re.findall(r"dashboard is at (http://127\.0\.0\.1:\d+)", log.read_text()))
        yield url
    finally:
        process.terminate()
        assert process.wait(30) in (0, -15)


def test_the_web_command_serves_the_pages(url):
    with urllib.request.urlopen(f"{url}/") as page:
        assert "sync_order" in page.read().decode()


def test_no_program_of_this_machine_chooses_the_address_of_its_tries(monkeypatch, request):
    """uvicorn believed X-Forwarded-For of 127.0.0.1: passwords could be guessed without a limit, also through
    a proxy there that passes the header on.
    """
    monkeypatch.setenv("LOWKIQ_WEB_AUTH", "ops:secret")
    url = request.getfixturevalue("url")

    def status(number):
        headers = {"Authorization": f"Basic {b64encode(b'ops:wrong').decode()}"}
        asked = urllib.request.Request(url, headers=headers | {"X-Forwarded-For": f"192.0.2.{number}"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        return refused.value.code

    assert [status(number) for number in range(12)] == [401] * BURST + [429] * 2


def test_each_change_leaves_lines_with_their_time_in_its_log(url, log, queue):
    proj.sync_order.delay("a", "x")
    body = json.dumps({"queue": "sync_order", "action": "delete", "ids": ["a"], "wait": 10}).encode()
    kind = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/changes", body, kind)) as answer:
        assert json.load(answer)["state"] == "done"
    begins, ends = (line for line in log.read_text().splitlines() if "celery_lowkiq.audit" in line)
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO celery_lowkiq.audit: delete begins: ", begins)
    assert ends.endswith("delete done: user='local' from=127.0.0.1 queue='sync_order' ids=['a'] jobs=1")


@pytest.mark.full
@pytest.mark.parametrize("options", [["--prefix", prefix] for prefix in ("ops", "/ops", "ops/", "/ops/")])
def test_all_links_begin_with_the_prefix(url):
    with urllib.request.urlopen(f"{url}/") as page:
        links = re.findall(r'(?:href|src|action)="([^"#]+)', page.read().decode())
        assert links
        assert [link for link in links if not link.startswith("/ops/")] == []
        assert "Path=/ops;" in page.headers["set-cookie"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_web_command_ends_on_a_signal(server, stop):
    process = start("web", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = process.stdout.readline()
    eventually(lambda: b"startup complete" in process.stderr.readline())
    process.send_signal(stop)
    _, errors = process.communicate(timeout=30)
    assert (said[:20], process.returncode in (0, -stop)) == (b"the dashboard is at ", True)
    assert b"Traceback" not in errors


@pytest.mark.full
def test_a_name_is_served_at_all_its_addresses(server):
    process = start("web", "--host", "localhost", "--port", "0", stdout=subprocess.PIPE)
    try:
        port = int(re.findall(rb":(\d+)/", process.stdout.readline())[0])
        for family, _, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            with socket.socket(family) as client:
                client.connect(address)
    finally:
        process.kill()
        process.wait(30)
