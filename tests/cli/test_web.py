"""``celery lowkiq web``: the dashboard as a server of its own."""

from __future__ import annotations

import re
import subprocess
import urllib.request

import pytest

from tests.waiting import eventually

from .conftest import start


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


def test_it_serves_the_pages(server, tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = start("web", "--port", "0", stdout=out, stderr=subprocess.STDOUT)
    try:
        (url,) = eventually(lambda: re.findall(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()))
        with urllib.request.urlopen(f"{url}/") as page:
            assert "sync_order" in page.read().decode()
    finally:
        process.terminate()
        assert process.wait(30) in (0, -15)
