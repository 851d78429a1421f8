"""Pictures of each page for the documentation: ``nox -s screenshots``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules import resharding
from tests.browsing import chromium
from tests.web import showcase
from tests.web.migrating import flipped
from tests.web.serving import served, shop
from tests.web.showcase import FAILING

PAGES = {
    "overview": "/",
    "queue": "/queue?queue=sync_order",
    "shards": "/queue?queue=sync_order&list=shards",
    "retries": "/queue?queue=sync_order&list=retries",
    "job": f"/job?queue=sync_order&id={FAILING}",
    "nodes": "/nodes",
    "operations": "/operations",
    "doctor": "/doctor",
}
#: Width, height and pixels a point of a screen.
SCREENS = {"light": (1200, 800, 1), "dark": (1200, 800, 1), "phone": (390, 780, 2)}
#: Pages are cut below this height, in points.
TALLEST = 1150


def take(browser: Any, url: str, screen: str, to: Path) -> None:
    """A picture of all of the page."""
    width, height, scale = SCREENS[screen]
    scheme = "dark" if screen == "dark" else "light"
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    phone = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": screen == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.get(url)
    whole = browser.execute_script("return document.documentElement.scrollHeight")
    tall = {**phone, "height": min(max(whole, height), TALLEST)}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", tall)
    browser.save_screenshot(str(to))


def change(url: str) -> None:
    """Something for the list of operations."""
    for action, more in (
        ("run_now", {"ids": ["TEA-07"]}),
        ("run_now_all", {}),
        ("pause", {}),
        ("resume", {}),
    ):
        body = {"queue": "update_stock", "action": action, "wait": 10, **more}
        headers = {"Content-Type": "application/json"}
        asked = Request(f"{url}/api/v1/changes", json.dumps(body).encode(), headers)
        urlopen(asked).close()


def show_move(browser: Any, folder: Path) -> None:
    """A queue whose move to another number of shards stands still halfway."""
    with EmbeddedServer() as server:
        app = showcase.make_app(server.url)
        showcase.fill(app)
        resharding.TURN_JOBS = 400
        flipped(app, app.tasks["sync_order"].ordered_queue, 36).turn()
        with served(app) as url:
            for screen in SCREENS:
                take(browser, f"{url}/queue?queue=sync_order", screen, folder / f"resharding-{screen}.png")


def main(folder: Path) -> None:
    """All pictures, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedServer() as server,
        shop(server, Path(scratch)) as app,
        served(app) as url,
        chromium(Path(scratch) / "profile") as browser,
    ):
        change(url)
        for page, path in PAGES.items():
            for screen in SCREENS:
                take(browser, url + path, screen, folder / f"{page}-{screen}.png")
        show_move(browser, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
