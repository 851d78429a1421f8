"""``doctor``: health checks, and what to do about each problem."""

from __future__ import annotations

import click

from celery_lowkiq.cli.main import FAILED
from celery_lowkiq.cli.output import command, json_option, write_json, write_text
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.text import escaped
from celery_lowkiq.rules.views import ERROR, Finding


@command("Check Redis, nodes and queues.", ["doctor", "doctor --json"])
@json_option
def doctor(inspector: Inspector, json_: bool) -> None:
    """Check Redis (version, memory policy, persistence, clock), the nodes, and the queues (number of shards,
    damaged keys, nodes that serve them, shards and jobs without an owner, jobs that wait while lanes are
    free), and say what to do.

    Status 1 when there is an error; a warning alone is status 0.
    """
    findings = inspector.doctor()
    for finding in findings:
        if json_:
            write_json(finding)
        else:
            write_text(_text(finding))
    if any(finding.level == ERROR for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _text(finding: Finding) -> str:
    text = f"{finding.level:8} {finding.subject}: {finding.text}"
    return escaped(text) + (f"\n         {escaped(finding.advice)}" if finding.advice else "")
