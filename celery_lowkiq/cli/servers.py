"""Commands that serve until they are interrupted: the dashboard, Flower, metrics."""

from __future__ import annotations

import errno
import logging
import signal
import socket
from contextlib import suppress
from typing import Any

import click

from celery_lowkiq.cli.output import binding, write_text
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.text import host_port

# ``celery -A proj lowkiq web``: the dashboard as a server of its own.

NEEDS = "the dashboard needs more packages: pip install 'celery-lowkiq[web]'"

#: Maximum number of connections that wait to be accepted.
BACKLOG = 2048
LACKING = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5556, show_default=True, type=click.IntRange(0, 65535), help="0: any free.")
@click.option("--read-only", is_flag=True, default=None, help="Refuse all changes.")
@click.option("--user-header", help="Header in which a trusted reverse proxy names the user.")
@click.option("--trusted-proxy", multiple=True, help="Address or network of a reverse proxy.")
@click.option("--origin", multiple=True, help="Accept changes from this origin, if a proxy renames the host.")
@click.option("--prefix", default="", help="Path prefix at a reverse proxy.")
@click.option("--quiet", is_flag=True, help="Log changes and errors, but no requests.")
@click.pass_context
def web(
    context: click.Context,
    host: str,
    port: int,
    read_only: bool | None,
    user_header: str | None,
    trusted_proxy: tuple[str, ...],
    origin: tuple[str, ...],
    prefix: str,
    quiet: bool,
) -> None:
    """Serve the dashboard.

    Name and password come from LOWKIQ_WEB_AUTH=user:password, or the setting lowkiq_web_auth; roles come from
    lowkiq_web_roles. Without a password, it listens on this machine only.

    Examples:

      celery -A proj lowkiq web

      LOWKIQ_WEB_AUTH=ops:secret celery -A proj lowkiq web --host 0.0.0.0 --port 8080
    """
    try:
        import uvicorn

        from celery_lowkiq.web import make_app
        from celery_lowkiq.web.auth import is_loopback
    except ImportError as error:
        raise click.ClickException(f"{NEEDS} ({error})") from error
    app: Any = context.obj.app
    try:
        dashboard = make_app(
            app,
            user_header=user_header,
            trusted_proxies=trusted_proxy or None,
            read_only=read_only,
            origins=origin,
        )
        # An import error would otherwise appear only on pages.
        dashboard.state.site.inspector.queues()
    except LowkiqError as error:
        raise click.ClickException(str(error)) from error
    if dashboard.state.site.access.is_open and not is_loopback(host):
        raise click.ClickException(
            f"--host {host}: the dashboard would be reachable without a password. "
            "Set LOWKIQ_WEB_AUTH=user:password, or --user-header behind a proxy, or stay on 127.0.0.1."
        )
    with binding(host, port):
        sockets = _listen(host, port)
    _show_our_log()
    address = host_port(host, sockets[0].getsockname()[1])
    write_text(f"the dashboard is at http://{address}{_root_path(prefix)}/")
    server = uvicorn.Server(uvicorn.Config(dashboard, **_options(prefix, quiet)))
    with suppress(KeyboardInterrupt):
        server.run(sockets)


def _options(prefix: str, quiet: bool) -> dict[str, Any]:
    from celery_lowkiq.web.server import HttpProtocol

    # uvicorn would trust each program of this machine; lowkiq_web_trusted_proxies says whom we trust.
    options = {"http": HttpProtocol, "ws": "none", "proxy_headers": False}
    return {"root_path": _root_path(prefix), "log_level": "warning" if quiet else "info", **options}


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host name at one port; 0 chooses a free one. Raises OSError."""
    found: list[socket.socket] = []
    lacking: list[OSError] = []
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, (ip, *_) in dict.fromkeys((family, address) for family, _, _, _, address in addresses):
        taken = found[0].getsockname()[1] if found else port
        try:
            found.append(socket.create_server((str(ip), taken), family=family, backlog=BACKLOG))
        except OSError as error:
            # "localhost" may resolve to IPv6 on a machine without it.
            if error.errno not in LACKING:
                raise
            lacking.append(error)
    if not found:
        raise lacking[0]
    return found


def _root_path(prefix: str) -> str:
    """Return the prefix with a leading slash, and without a trailing one."""
    path = prefix.strip("/")
    return f"/{path}" if path else ""


def _show_our_log() -> None:
    """Write the audit log to stderr unless the project configures it; uvicorn writes only its own log."""
    logger = logging.getLogger("celery_lowkiq")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logger.addHandler(handler)


# ``flower``: Flower with our tab.

FLOWER_NEEDS = "Flower is not installed: pip install 'celery-lowkiq[flower]'"


@click.command(
    short_help="Start Flower with a tab for ordered queues.",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  celery -A proj lowkiq flower
  FLOWER_BASIC_AUTH=ops:secret celery -A proj lowkiq flower
""",
)
@click.argument("options", metavar="[OPTIONS OF FLOWER]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def flower(context: click.Context, options: tuple[str, ...]) -> None:
    """Start Flower with a tab "Ordered queues".

    It takes the options that `celery flower` takes. Changes in the tab need Flower's own
    authentication, as all changes in Flower.
    """
    try:
        from flower.command import flower as flowers

        from celery_lowkiq.flower import install
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{FLOWER_NEEDS} ({error})") from error
    install()
    context.invoke(flowers, tornado_argv=options)


# ``metrics``: the metrics of queues, for Prometheus.

METRICS_NEEDS = "metrics need another package: pip install 'celery-lowkiq[metrics]'"
STOPS = (signal.SIGINT, signal.SIGTERM)


@click.command(
    short_help="Export the metrics of queues to Prometheus.",
    epilog="""\b
Examples:
  celery -A proj lowkiq metrics
  celery -A proj lowkiq metrics --host 10.0.0.5 --port 9900
""",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; there is no password."
)
@click.option("--port", default=9809, show_default=True, type=click.IntRange(0, 65535), help="0: any free.")
@click.pass_context
def metrics(context: click.Context, host: str, port: int) -> None:
    """Export the metrics of all queues to Prometheus, without a worker, until it is interrupted.

    Workers export the metrics of runs, lanes and leases: see the setting lowkiq_metrics_port.
    """
    try:
        from celery_lowkiq.metrics.queues import listen, queue_registry
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{METRICS_NEEDS} ({error})") from error
    registry = queue_registry(context.obj.app)
    # Before the server's threads are made, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    with binding(host, port):
        server = listen(registry, host, port)
    write_text(f"metrics are at {server.url}")
    signal.sigwait(STOPS)
    server.close()
