"""The real Flower, as a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.processes import ROOT, Process
from tests.waiting import eventually

USER = "ops:pass"


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: Message


@dataclass(frozen=True)
class FlowerSite:
    """Where it listens; asked as the operator that it knows."""

    url: str
    user: str = USER

    @property
    def with_user(self) -> str:
        """The address for a browser."""
        return self.url.replace("://", f"://{self.user}@")

    def get(self, path: str) -> str:
        return self.ask(path).text

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def ask(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        """GET, or POST a form. Redirects are not followed."""
        if self.user:
            headers["Authorization"] = f"Basic {b64encode(self.user.encode()).decode()}"
        body = None if form is None else urlencode(form)
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request("GET" if form is None else "POST", path, body, headers)
        reply = connection.getresponse()
        answer = Answer(reply.status, reply.read().decode(), reply.headers)
        connection.close()
        return answer

    def act(self, queue: str, action: str, **more: str) -> Answer:
        """Send the form of a queue's page, with its token and its cookie."""
        page = self.ask(f"/ordered/queue?queue={queue}")
        (token,) = set(re.findall(r'name="_xsrf" value="([^"]+)"', page.text))
        cookie = page.headers["Set-Cookie"].partition(";")[0]
        form = {"_xsrf": token, "queue": queue, "action": action, **more}
        return self.ask("/ordered/action", form, Cookie=cookie)


@contextmanager
def flower(directory: Path, *command: str, user: str = USER, **env: str) -> Iterator[FlowerSite]:
    """``celery -A tests.worker.proj <command>``; without authentication when ``user`` is empty."""
    log = directory / "flower.log"
    words = [sys.executable, "-m", "celery", "-A", "tests.worker.proj", *command]
    words += ["--address=127.0.0.1", "--port=0", *([f"--basic-auth={user}"] if user else [])]
    with log.open("wb") as output:
        process = Process(
            words, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def address() -> str | None:
        text = log.read_text(errors="replace")
        assert process.poll() is None, text
        found = re.search(r"Visit me at (http://[\w.:]+)", text)
        return found and found[1]

    try:
        yield FlowerSite(eventually(address, 60), user)
    finally:
        process.kill()
        process.wait(30)
