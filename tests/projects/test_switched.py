"""A task of each project becomes ordered by one line from outside; its own callers stay as they are."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.waiting import eventually

pytestmark = pytest.mark.full

SETTINGS = """
SECRET_KEY = "secret"
INSTALLED_APPS = ["django.contrib.contenttypes", {apps}]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{directory}/db.sqlite3"}}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
"""
#: The app that a project of published packages has, with the line that switches a task.
SITE = """
import os

import django
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "{settings}")
{app}
app.conf.update(broker_url=os.environ["URL"], result_backend=os.environ["URL"])
app.conf.update(broker_connection_retry_on_startup=True)
django.setup()

from celery_lowkiq import ordered_task
{line}
"""
OWN_APP = 'app = Celery("site", set_as_current=True)\napp.autodiscover_tasks()'


class Project:
    """A Django project in a directory, with a worker."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self._env = {**os.environ, "URL": url, "DJANGO_SETTINGS_MODULE": ""}
        del self._env["DJANGO_SETTINGS_MODULE"]
        self._worker: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def python(self, code: str) -> str:
        """Run code of a caller, which imports the site as every process of the project does."""
        done = subprocess.run(
            [sys.executable, "-c", f"import site_app\n{code}"],
            cwd=self.directory,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_worker(self) -> None:
        with (self.directory / "worker.log").open("w") as log:
            command = [sys.executable, "-m", "celery", "-A", "site_app", "worker", "-P", "threads", "-c", "8"]
            options = ["-l", "INFO", "--without-mingle", "--without-gossip"]
            self._worker = subprocess.Popen(
                [*command, *options], cwd=self.directory, env=self._env, stdout=log, stderr=log
            )
        eventually(lambda: "ready." in self.log())

    def log(self) -> str:
        return (self.directory / "worker.log").read_text()

    def processed(self, task: str) -> str:
        """The number of calls of a task that its ordered queue has processed."""
        return self.python(f"print(site_app.app.tasks[{task!r}].ordered_queue.stats().processed)").strip()

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()


@pytest.fixture
def project(tmp_path, settings):
    found = Project(tmp_path, settings["broker_url"])
    yield found
    found.stop()


class Receiver:
    """An HTTP server that remembers the bodies of requests."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        received = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver():
    found = Receiver()
    yield found
    found.close()


def celerys_sources(directory: Path) -> Path:
    """Fetch the sdist of the installed Celery."""
    version = importlib.metadata.version("celery")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    command += ["--no-build-isolation", "-d", str(directory), f"celery=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the sdist of Celery cannot be fetched: {done.stderr[-300:]}")
    with tarfile.open(next(directory.glob("celery-*.tar.gz"))) as files:
        files.extractall(directory, filter="data")
    return directory / f"celery-{version}"


def test_the_django_example_of_celery(project, tmp_path):
    example = celerys_sources(tmp_path) / "examples" / "django"
    project.directory = example
    project.write(
        "site_app.py",
        SITE.format(
            settings="proj.settings",
            app="from proj.celery import app",
            line="from demoapp.tasks import rename_widget\n"
            'ordered_task(by="widget_id", shards=4)(rename_widget)',
        ),
    )
    project.python('from django.core.management import call_command; call_command("migrate", verbosity=0)')
    project.python('from demoapp.models import Widget; Widget.objects.create(id=1, name="new")')
    project.start_worker()
    project.python(
        "from demoapp.tasks import add, count_widgets, rename_widget\n"
        'results = [rename_widget.delay(1, name=f"name {n}") for n in range(50)]\n'
        "for result in results: result.get(timeout=60)\n"
        "assert add.delay(2, 3).get(timeout=30) == 5\n"
        "assert count_widgets.delay().get(timeout=30) == 1\n"
    )
    name = project.python("from demoapp.models import Widget; print(Widget.objects.get(id=1).name)")
    assert name.strip() == "name 49"
    assert project.processed("demoapp.tasks.rename_widget") == "50"


def test_webhooks_reach_each_receiver_in_order(project, receiver):
    project.write(
        "site_settings.py",
        SETTINGS.format(apps='"django.contrib.auth", "django_webhook"', directory=project.directory)
        + 'DJANGO_WEBHOOK = {"MODELS": ["auth.Group"], "USE_CACHE": False, "STORE_EVENTS": False}\n',
    )
    line = (
        'from django_webhook.tasks import fire_webhook\nordered_task(by="webhook_id", shards=4)(fire_webhook)'
    )
    project.write("site_app.py", SITE.format(settings="site_settings", app=OWN_APP, line=line))
    project.python('from django.core.management import call_command; call_command("migrate", verbosity=0)')
    project.python(
        "from django_webhook.models import Webhook, WebhookTopic\n"
        f'hook = Webhook.objects.create(url="{receiver.url}")\n'
        'topic, _ = WebhookTopic.objects.get_or_create(name="auth.Group/update")\n'
        "hook.topics.set([topic])\n"
    )
    project.start_worker()
    project.python(
        "from django.contrib.auth.models import Group\n"
        'group = Group.objects.create(name="new")\n'
        "for n in range(50):\n"
        '    group.name = f"name {n}"\n'
        "    group.save()\n"
    )
    eventually(lambda: len(receiver.bodies) == 50)
    names = [re.search(r"name (\d+)", body) for body in receiver.bodies]
    assert [int(name[1]) for name in names if name] == list(range(50))
    assert project.processed("django_webhook.tasks.fire_webhook") == "50"


def test_mails_to_each_person_are_sent_in_order(project):
    mails = project.directory / "mails"
    project.write(
        "site_settings.py",
        SETTINGS.format(apps='"djcelery_email"', directory=project.directory)
        + 'EMAIL_BACKEND = "djcelery_email.backends.CeleryEmailBackend"\n'
        + 'CELERY_EMAIL_BACKEND = "site_mail.Backend"\n',
    )
    project.write(
        "site_mail.py",
        "from django.core.mail.backends.base import BaseEmailBackend\n"
        "class Backend(BaseEmailBackend):\n"
        "    def send_messages(self, messages):\n"
        f'        with open("{mails}", "a") as sent:\n'
        '            sent.writelines(f"{m.to[0]} {m.subject}\\n" for m in messages)\n'
        "        return len(messages)\n",
    )
    line = (
        "from djcelery_email.tasks import send_emails\n"
        'ordered_task(by=lambda arguments: arguments["messages"][0]["to"][0])(send_emails)'
    )
    project.write("site_app.py", SITE.format(settings="site_settings", app=OWN_APP, line=line))
    project.start_worker()
    project.python(
        "from django.core.mail import send_mail\n"
        "for n in range(40):\n"
        '    send_mail(str(n), "text", "shop@example.com", [f"{n % 2}@example.com"])\n'
    )
    eventually(lambda: mails.exists() and len(mails.read_text().splitlines()) == 40)
    sent = [line.split() for line in mails.read_text().splitlines()]
    for person in (0, 1):
        numbers = [int(number) for to, number in sent if to == f"{person}@example.com"]
        assert numbers == list(range(person, 40, 2))
    assert project.processed("djcelery_email_send_multiple") == "40"
