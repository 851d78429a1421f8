"""docs/at-night: its commands can be typed, its alerts and log lines exist."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from celery_lowkiq.cli.main import lowkiq

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "at-night").glob("*.md"))}
SYMPTOMS = {name: text for name, text in PAGES.items() if name != "index"}
ALERTS = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text())
COMMAND = "celery -A proj lowkiq "
#: Of others: Celery, Redis, systems; and code.
NOT_OURS = {
    "CRITICAL Unrecoverable error",
    "CONFIG SET",
    "SLOWLOG GET",
    "kill -9",
    "kill -TTIN PID",
    "lowkiq quiet",
}
CODE = re.compile(r"celery -A|maxmemory-policy noeviction|appendfsync |\w+ = ")


def commands() -> set[str]:
    typed = {line for text in PAGES.values() for line in text.splitlines() if line.startswith(COMMAND)}
    return typed | {found for text in PAGES.values() for found in re.findall(rf"`({COMMAND}[^`]+)`", text)}


@pytest.mark.parametrize("line", sorted(commands()))
def test_a_command_can_be_typed(line):
    name, *words = shlex.split(line.removeprefix(COMMAND))
    command = lowkiq.get_command(click.Context(lowkiq), name)
    assert command is not None
    command.make_context(name, words)


def test_each_alert_has_a_page():
    alerts = {rule["alert"] for group in ALERTS["groups"] for rule in group["rules"]}
    named = set(re.findall(r"`(Lowkiq\w+)`", PAGES["index"]))
    assert alerts == named
    for alert in alerts:
        assert any(f"`{alert}`" in text for text in SYMPTOMS.values()), alert


def test_each_page_is_in_the_index():
    listed = PAGES["index"].partition(":hidden:")[2].split()
    assert set(listed) - {"```"} == set(SYMPTOMS)
    for name in SYMPTOMS:
        assert f"({name}.md)" in PAGES["index"]


def test_lines_of_the_log_are_those_of_the_source():
    texts = [
        node.value
        for path in (ROOT / "celery_lowkiq").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    source = "\n".join(texts)
    prose = [re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL) for text in PAGES.values()]
    quoted = {word.replace("\n", " ") for text in prose for word in text.split("`")[1::2] if " " in word}
    logged = {word for word in quoted - NOT_OURS if not CODE.match(word)}
    assert len(logged) > 10
    assert {word for word in logged if word not in source} == set()
