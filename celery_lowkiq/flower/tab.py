"""Puts the tab into Flower, which has no way of its own for that: its lists are changed before it is made."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from flower import urls
from tornado.template import Loader, Template
from tornado.web import url

from celery_lowkiq.rules.loggers import flower_logger as logger

from .handlers import OrderedAction, OrderedApi, OrderedPage, OrderedQueuePage

PAGES = ("ordered.html", "ordered_queue.html")
BAR = "navbar.html"
#: The entry of the last tab in Flower's bar: ours is made like it, in every version's own style.
LAST_TAB = re.compile(r"<li\b(?:(?!</li>).)*reverse_url\('broker'\)(?:(?!</li>).)*</li>", re.DOTALL)

HANDLERS = [
    url(r"/ordered", OrderedPage, name="ordered"),
    url(r"/ordered/queue", OrderedQueuePage, name="ordered-queue"),
    url(r"/ordered/action", OrderedAction, name="ordered-action"),
    url(r"/api/ordered", OrderedApi),
]


def install() -> None:
    """Add the tab to a Flower that is made in this process later. Doing so twice changes nothing."""
    if HANDLERS[0] not in urls.handlers:
        # The last one answers whatever no other does.
        urls.handlers[-1:-1] = HANDLERS
        urls.settings["template_loader"] = TabLoader(urls.settings["template_path"])


class TabLoader(Loader):
    """Flower's templates, ours among them, and the tab in its bar."""

    def _create_template(self, name: str) -> Template:
        if name in PAGES:
            text = resources.files(__package__).joinpath("templates").joinpath(name).read_text("utf-8")
            return Template(text, name=name, loader=self)
        if name != BAR:
            return super()._create_template(name)
        bar = Path(self.root, name).read_text("utf-8")
        return Template(with_tab(bar), name=name, loader=self)


def with_tab(bar: str) -> str:
    """Flower's bar with our tab behind its last one."""
    last = LAST_TAB.search(bar)
    if last is None:
        logger.warning(
            "this Flower has another bar: the page of ordered queues is at /ordered, without a tab"
        )
        return bar
    ours = last[0].replace("'broker'", "'ordered'").replace("Broker", "Ordered queues")
    return f"{bar[: last.end()]}\n{ours}{bar[last.end() :]}"
