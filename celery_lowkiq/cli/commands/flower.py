"""``flower``: Flower with our tab."""

from __future__ import annotations

import click

NEEDS = "Flower is not installed: pip install 'celery-lowkiq[flower]'"


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

    It takes the options that `celery flower` takes. What the tab can change needs Flower's own
    authentication, as all that Flower changes.
    """
    try:
        from flower.command import flower as flowers

        from celery_lowkiq.flower import install
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{NEEDS} ({error})") from error
    install()
    context.invoke(flowers, tornado_argv=options)
