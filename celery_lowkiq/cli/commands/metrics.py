"""``metrics``: the metrics of queues, for Prometheus."""

from __future__ import annotations

import signal

import click

from celery_lowkiq.cli.output import binding, write_text

NEEDS = "metrics need another package: pip install 'celery-lowkiq[metrics]'"
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
        raise click.ClickException(f"{NEEDS} ({error})") from error
    registry = queue_registry(context.obj.app)
    # Before the server's threads are made, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    with binding(host, port):
        server = listen(registry, host, port)
    write_text(f"metrics are at {server.url}")
    signal.sigwait(STOPS)
    server.close()
