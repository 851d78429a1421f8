"""The documentation says what is there, and its code runs."""

from __future__ import annotations

import configparser
import os
import re
import sys
from pathlib import Path

import pytest

from celery_lowkiq.integration.options import REFUSED
from tests.docs import tables
from tests.processes import ROOT, run

COMMAND = (
    "python3 -m venv --without-pip .venv && python3 -m pip --python .venv install -q 'nox[uv]' "
    "&& .venv/bin/nox -s {session}"
)


def blocks(path: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / path).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", ["README.md", "docs/quickstart.md"])
def test_python_blocks_run_in_order(path, redis_server, monkeypatch):
    """Celery takes the broker from the environment before the one in the code."""
    monkeypatch.setenv("CELERY_BROKER_URL", redis_server.url)
    names: dict = {"__name__": f"docs_{Path(path).stem}"}
    for block in blocks(path):
        exec(compile(block, path, "exec"), names)
    waiting = names["sync_order"].ordered_queue.job("42").waiting
    assert [payload.value for payload in waiting.payloads] == [{"status": "paid", "version": 7}]


def test_the_quickstart_lists_the_extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / "docs/quickstart.md").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"\w+", " ".join(listed))) == {*setup["options.extras_require"]}


#: docs/django.md is a project of its own: test_django_page.py.
FOLLOWED = {"docs/django.md"}
PAGES = [
    page
    for path in sorted(ROOT.glob("docs/*.md"))
    if blocks(page := path.relative_to(ROOT).as_posix()) and page not in FOLLOWED
]
#: What a page may take as given, because the quickstart has it.
GIVEN = """
from celery import Celery
from celery_lowkiq import OrderedTask, ordered_task

app = Celery("proj")


@ordered_task
def sync_order(payloads_by_id): ...
"""


@pytest.mark.parametrize("path", PAGES)
def test_python_blocks_of_each_page_run(path, empty_redis):
    """In a process of their own: tasks without an app belong to every app that is made later."""
    environ = {**os.environ, "CELERY_BROKER_URL": empty_redis.url, "ORDERS_KEY": "x" * 32}
    done = run([sys.executable, "-c", "\n".join([GIVEN, *blocks(path)])], 60, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stderr


def test_the_recurring_calls_come_at_each_quarter_of_an_hour():
    names: dict = {}
    for block in (GIVEN, *(block for block in blocks("docs/calling.md") if "crontab" in block)):
        exec(compile(block, "docs/calling.md", "exec"), names)
    names["app"].finalize()
    for entry in names["app"].conf.beat_schedule.values():
        assert entry["task"] in names["app"].tasks
    recurrence = names["app"].conf.beat_schedule["sync all users"]["schedule"]
    assert (recurrence.minute, len(recurrence.hour)) == ({0, 15, 30, 45}, 24)


def test_the_readme_begins_with_one_line_of_a_plain_task():
    text = (ROOT / "README.md").read_text()
    assert "```diff\n-@app.task\n+@ordered_task(by=" in text[: text.index("```python")]


@pytest.mark.parametrize("path", ["README.md", "docs/quickstart.md"])
def test_a_clone_is_installed_by_its_path(path):
    assert '`pip install ".[embedded,web]"`' in (ROOT / path).read_text()


def test_the_readmes_example_is_the_quickstarts():
    readme, *_ = blocks("README.md")
    quickstart = (ROOT / "examples" / "quickstart.py").read_text()
    for line in readme.splitlines():
        if line.strip() and "print" not in line and "delay" not in line and "proj" not in line:
            assert line in quickstart, line


def test_the_demos_tasks_differ_by_the_line_of_the_readme():
    source = (ROOT / "examples" / "replica" / "tasks.py").read_text()
    _, diff = re.findall(r"^```diff\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    tasks = re.findall(r'^(@.*)\ndef mirror_\w+(\(.*)\n    """.*"""\n((?:    .*\n)+)', source, re.MULTILINE)
    (plain, *function), (ordered, *same) = tasks
    assert function == same
    assert diff.splitlines() == [f"-{plain}", f"+{ordered}"]


@pytest.mark.parametrize("session", ["demo", "tests"])
def test_the_two_commands_are_in_the_readme(session):
    assert COMMAND.format(session=session) in (ROOT / "README.md").read_text().splitlines()


def test_ci_runs_the_readmes_test_command():
    assert COMMAND.format(session="tests") in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_those_of_the_declarations(name):
    """`python -m tests.docs.tables` writes them."""
    found = (ROOT / "docs" / name).read_text()
    assert found == tables.page(name)
    for first, *_ in tables.TABLES[name]:
        assert f"| {first} |" in found


def test_links_between_pages_exist():
    for page in set(ROOT.glob("docs/**/*.md")) - set(ROOT.glob("docs/_build/**/*.md")):
        for target in re.findall(r"\]\(([^)#:]+\.(?:md|svg))", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target in re.findall(r"\]\((docs/[^)#]+|[A-Z]+\.md)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_every_test_that_a_page_names_exists():
    """A row of the table of Celery's features is true because its test is there."""
    page = (ROOT / "docs" / "celery-features.md").read_text()
    named = re.findall(r"<!-- (tests/[\w/]+\.py)::(?:(Test\w+)::)?(test_\w+) -->", page)
    assert len(named) > 100
    rows = re.findall(r"^\| (?!feature).*$", page.partition("## Refused")[0], re.MULTILINE)
    assert [row for row in rows if "<!-- tests/" not in row] == []
    for path, of_class, name in named:
        source = (ROOT / path).read_text()
        found = source.partition(f"class {of_class}:\n")[2] if of_class else source
        indent = "    " if of_class else ""
        assert f"\n{indent}def {name}(" in f"\n{found}", f"{path}: {of_class} {name}"


def test_every_refused_option_is_in_the_table():
    page = (ROOT / "docs" / "celery-features.md").read_text().partition("## Refused")[2]
    for option in REFUSED:
        assert f"`{option}" in page, option
