"""The group of all commands, and what it makes of errors: one line and an exit status, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import click
from kombu.exceptions import OperationalError

from celery_lowkiq.integration.app.current_app import NO_APP

# `celery inspect` and `celery control` then show our commands: Celery loads this module as a plugin.
from celery_lowkiq.integration.bootstep import remote_control as remote_control
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, LowkiqError
from celery_lowkiq.rules.text import escaped

from . import commands

#: Exit status 1: it is not there, nothing was done, or Redis is away; 2: it was asked for in a wrong way.
FAILED, USAGE = 1, 2
EXAMPLES = """\b
Examples:
  celery -A proj lowkiq stats --watch 1
  celery -A proj lowkiq job sync_order 42
  celery -A proj lowkiq requeue sync_order --all
"""


class Commands(click.Group):
    """Finds its commands among the modules of ``commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted(module.name.replace("_", "-") for module in iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, if there is one."""
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"{commands.__name__}.{name}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours ends it with one line."""
        _write_any_text()
        try:
            return super().invoke(ctx)
        except (LowkiqError, OperationalError) as error:
            raise _failure(error) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # whoever reads has enough, which click knows
            if isinstance(error, OSError):
                _forget_output()
                raise _Failed(escaped(str(error))) from error
            raise


class _Failed(click.ClickException):
    exit_code = FAILED


class _Misused(click.ClickException):
    exit_code = USAGE


def _failure(error: Exception) -> click.ClickException:
    if str(error) == NO_APP:
        return _Misused(
            "no app is given: write celery -A proj lowkiq ..., where proj is the module of your app"
        )
    wrong = isinstance(error, (InvalidCall, ConfigurationError))
    return (_Misused if wrong else _Failed)(escaped(str(error)))


def _write_any_text() -> None:
    """An id that the terminal's encoding does not have is no reason to end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """What stdout does not take, as a disk that is full, Python would try to write once more at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Commands, epilog=EXAMPLES)
def lowkiq() -> None:
    """Look into ordered queues, and act on them. Needs no worker.

    Exit status: 0; 1 when something is not there, nothing was done, or Redis is away; 2 for wrong usage.
    """
