"""``doctor``: is all well, and what to do where it is not."""

from __future__ import annotations

from dataclasses import asdict

import click

from celery_lowkiq.integration.operations.inspector import Console
from celery_lowkiq.rules.health_checks import ERROR, Finding
from celery_lowkiq.rules.text import escaped

from ..main import FAILED
from ..output import write_json
from ..params import command, json_option


@command("Is all well, and what to do where it is not.", ["doctor", "doctor --json"])
@json_option
def doctor(console: Console, json_: bool) -> None:
    """Look at Redis (version, memory policy, persistence, clock), the nodes, and the queues (numbers of
    shards, damaged keys, who serves them, shards and jobs without an owner), and say what to do.

    Status 1 when there is an error; a warning alone is status 0.
    """
    findings = console.checkup()
    for finding in findings:
        if json_:
            write_json(asdict(finding))
        else:
            click.echo(_text(finding))
    if any(finding.level == ERROR for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _text(finding: Finding) -> str:
    text = f"{finding.level:8} {finding.subject}: {finding.text}"
    return escaped(text) + (f"\n         {escaped(finding.advice)}" if finding.advice else "")
