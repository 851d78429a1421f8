"""The group of all commands. It turns errors into one line and an exit status."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from typing import Any, TypeGuard

import click
from kombu.exceptions import OperationalError

# `celery inspect` and `celery control` then show our commands: Celery loads this module as a plugin.
from celery_lowkiq.integration.bootstep import remote_control as remote_control
from celery_lowkiq.integration.current import NO_APP, naming
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, LowkiqError
from celery_lowkiq.rules.text import escaped

#: Exit status 1: not found, nothing done, or Redis unavailable; 2: usage error.
FAILED, USAGE = 1, 2
#: Modules of this package with commands. The other commands are verbs of the table of actions.
MODULES = ("read_commands", "change_commands", "servers", "dev", "acl")
EXAMPLES = """\b
Examples:
  celery -A proj lowkiq stats --watch 1
  celery -A proj lowkiq job sync_order 42
  celery -A proj lowkiq requeue sync_order --all
"""


class Commands(click.Group):
    """Group of all commands. It imports them late, because every ``celery`` command imports this module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        named = [
            name for each in MODULES for name, found in vars(_module(each)).items() if _is_command(found)
        ]
        return sorted([*named, *_module("change_commands").COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = (getattr(_module(each), cmd_name, None) for each in MODULES)
        if command := next(filter(_is_command, found), None):
            return command
        verb = _module("change_commands").COMMANDS.get(cmd_name)
        return _module("change_commands").command_of(verb) if verb else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A LowkiqError ends it with one line."""
        _write_any_text()
        try:
            return super().invoke(ctx)
        except (LowkiqError, OperationalError) as error:
            raise _failure(error, ctx) from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader closed the pipe: click exits quietly
            if isinstance(error, OSError):
                _forget_output()
                raise _Failed(escaped(str(error))) from error
            raise


def _is_command(value: object) -> TypeGuard[click.Command]:
    return isinstance(value, click.Command)


def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


class _Failed(click.ClickException):
    exit_code = FAILED


class _Misused(click.ClickException):
    exit_code = USAGE


def _failure(error: Exception, ctx: click.Context) -> click.ClickException:
    if str(error) == NO_APP:
        return _Misused(
            "no app is given: write celery -A proj lowkiq ..., where proj is the module of your app"
        )
    wrong = isinstance(error, (InvalidCall, ConfigurationError))
    return (_Misused if wrong else _Failed)(escaped(naming(str(error), ctx.obj.app)))


def _write_any_text() -> None:
    """Escape characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Drop output that stdout refused, as on a full disk: Python would write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Commands, epilog=EXAMPLES)
def lowkiq() -> None:
    """Read ordered queues and act on them. Needs no worker.

    Exit status: 0 for success, also when an action on all jobs finds no job; 1 if no given id, node or group
    exists, after a no, if something is damaged, or if Redis is unavailable; 2 for wrong usage.
    """
