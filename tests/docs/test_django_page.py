"""The page about Django, followed as it says: from nothing to a working shop."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "django.md").read_text()
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
#: What goes on until somebody ends it.
ENDLESS = ("celery -A shop lowkiq dev", "python manage.py runserver")


class Reader:
    """Somebody who does what the page says, in a folder and with ports of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = ""
        self.site, self.redis = str(free_port()), str(free_port())
        self._running: list[subprocess.Popen[bytes]] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if "BROKER" not in name},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "DJANGO_SUPERUSER_PASSWORD": "secret",
        }

    def follow(self, kind: str, text: str) -> None:
        text = text.replace("8000", self.site).replace("6379", self.redis)
        if kind == "python":
            self._write(text)
            return
        for line in text.splitlines():
            self._type(line)

    def _write(self, text: str) -> None:
        name, where = re.match(r"# ([\w/]+\.py)(, at its end)?\n", text).groups()
        with (self.folder / name).open("a" if where else "w") as file:
            file.write(text)

    def _type(self, line: str) -> None:
        if line.startswith("cd "):
            self.folder /= line[3:]
        elif line.startswith(ENDLESS):
            words = [*shlex.split(line), *([self.site, "--noreload"] if "runserver" in line else [])]
            log = (self.folder / "log").open("ab")
            self._running.append(
                subprocess.Popen(words, cwd=self.folder, env=self._env, stdout=log, stderr=log)
            )
            eventually(lambda: self._answers() if "runserver" in line else "ready." in self.log(), 60)
        elif not line.startswith("pip install "):
            more = " --noinput --username root --email r@shop.example" if "createsuperuser" in line else ""
            words = shlex.split(line + more)
            done = subprocess.run(
                words, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            self.out = done.stdout

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            return (
                httpx2.get(f"http://localhost:{self.site}/admin/", follow_redirects=True).status_code == 200
            )
        except httpx2.TransportError:
            return False

    def end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(30)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.end()


@pytest.mark.full
@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_from_nothing_to_a_working_shop(reader: Reader) -> None:
    for kind, text in BLOCKS:
        if kind == "sh" and "curl http" in text:
            *reports, look = text.splitlines(keepends=True)
            reader.follow(kind, "".join(reports))

            def shipped(look: str = look) -> bool:
                reader.follow("sh", look)
                return "shipped" in reader.out

            eventually(shipped, 30)
        else:
            reader.follow(kind, text)
    assert "[ordered queues]" in reader.log()
    with httpx2.Client(base_url=f"http://localhost:{reader.site}", follow_redirects=True) as browser:
        page = browser.get("/queues/")
        form = {"username": "root", "password": "secret", "next": "/queues/"}
        form["csrfmiddlewaretoken"] = browser.cookies["csrftoken"]
        assert "Ordered queues" not in page.text
        page = browser.post(page.url, data=form)
        assert str(page.url).endswith("/queues/")
        assert "orders.tasks.save_status" in page.text
        assert "/queues/" in browser.get("/admin/lowkiq/dashboard/").url.path
    reader.follow("sh", 'python manage.py shell -c "import shop.dashboards"')

    def passed() -> str | None:
        """What the check says once the worker is there: `lowkiq dev` restarts it for shop/dashboards.py."""
        words = [sys.executable, "manage.py", "check", "--deploy", "--tag", "lowkiq"]
        found = subprocess.run(words, cwd=reader.folder, env=reader._env, capture_output=True, text=True)
        return found.stderr if found.returncode == 0 and "lowkiq.E" not in found.stderr else None

    # The Redis of `lowkiq dev` keeps nothing on disk, and the check says so.
    assert "lowkiq.W002" in eventually(passed)


def test_each_block_has_a_name_or_is_typed():
    assert all(kind == "sh" or re.match(r"# [\w/]+\.py", text) for kind, text in BLOCKS)
