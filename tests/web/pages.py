"""Filling in forms as a browser does it."""

from __future__ import annotations

import html
import re
from typing import Any

from starlette.testclient import TestClient

ORIGIN = "http://localhost:5556"


def token(browser: TestClient, prefix: str = "") -> str:
    """Of the browser's session, from the page of operations, which is always there."""
    browser.get(f"{prefix}/operations")
    return str(browser.cookies["lowkiq_token"])


def submit(browser: TestClient, action: str, *ids: str, queue: str = "record", **fields: Any) -> Any:
    """Send the form of an action; follow it to the page that it ends on."""
    data = {"token": token(browser), "queue": queue, "action": action, "id": list(ids), **fields}
    headers = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    return browser.post("/change", data=data, headers=headers, follow_redirects=True)


def hidden_fields(text: str) -> dict[str, str]:
    """Of all forms of a page."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


def read_plain(browser: TestClient, job_id: str, queue: str = "record", **fields: Any) -> Any:
    """Send the form that shows an id without masks; ``edit``: the mark of the payload in the editor."""
    data = {"token": token(browser), "queue": queue, "id": job_id, **(fields or {"plain": "1"})}
    headers = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
    return browser.post("/job", data=data, headers=headers)
