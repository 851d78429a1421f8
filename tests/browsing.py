"""A headless Chromium, where the machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Nothing on the screen, nothing over the network but what a test asks for.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver with a new profile. Skips the test where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("no browser: Debian's packages chromium and chromium-driver bring one")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        found.set_page_load_timeout(60)
        # A click returns before the page that it leads to is there.
        found.implicitly_wait(20)
        yield found
    finally:
        found.quit()


def complaints(browser: Any) -> list[str]:
    """What the console of the browser says of errors since the last time."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
