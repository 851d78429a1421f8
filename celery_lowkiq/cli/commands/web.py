"""``celery -A proj lowkiq web``: the dashboard as a server of its own."""

from __future__ import annotations

import logging
from typing import Any

import click

from celery_lowkiq.rules.errors import LowkiqError

NEEDS = "the dashboard needs more packages: pip install 'celery-lowkiq[web]'"

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5556, show_default=True, type=click.IntRange(0, 65535), help="0: any free.")
@click.option("--read-only", is_flag=True, default=None, help="Nothing may be changed.")
@click.option("--user-header", help="Header in which a reverse proxy names the user.")
@click.option("--origin", multiple=True, help="Where changes may come from, when a proxy renames the host.")
@click.option("--prefix", default="", help="Path under which a reverse proxy serves it.")
@click.pass_context
def web(
    context: click.Context,
    host: str,
    port: int,
    read_only: bool | None,
    user_header: str | None,
    origin: tuple[str, ...],
    prefix: str,
) -> None:
    """Serve the dashboard.

    Name and password come from LOWKIQ_WEB_AUTH=user:password, or the setting lowkiq_web_auth. Without any it
    listens on this machine only.

    Examples:

      celery -A proj lowkiq web

      LOWKIQ_WEB_AUTH=ops:secret celery -A proj lowkiq web --host 0.0.0.0 --port 8080
    """
    try:
        import uvicorn

        from celery_lowkiq.web import make_app
        from celery_lowkiq.web.access import is_loopback
    except ImportError as error:
        raise click.ClickException(f"{NEEDS} ({error})") from error
    app: Any = context.obj.app
    try:
        dashboard = make_app(app, user_header=user_header, read_only=read_only, origins=origin)
    except LowkiqError as error:
        raise click.ClickException(str(error)) from error
    if dashboard.state.site.access.is_open and not is_loopback(host):
        raise click.ClickException(
            f"--host {host}: others could reach the dashboard, and nobody would be asked for a password. "
            "Set LOWKIQ_WEB_AUTH=user:password, or --user-header behind a proxy, or stay on 127.0.0.1."
        )
    _show_our_log()
    uvicorn.run(dashboard, host=host, port=port, root_path=_root_path(prefix), log_level="info")


def _root_path(prefix: str) -> str:
    """Links begin with it, so there is a slash before it, and none behind it."""
    path = prefix.strip("/")
    return f"/{path}" if path else ""


def _show_our_log() -> None:
    """Who changed what is told on stderr, unless the project says where to; uvicorn shows only its own."""
    logger = logging.getLogger("celery_lowkiq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)
