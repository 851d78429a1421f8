"""The picture of the walkthrough, for the README and the first page of the documentation."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from tests.browsing import chromium

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
from walkthrough import page  # an extension of Sphinx, which is on no path

#: The end of the first trace.
MOMENT = "merge@99999"
WIDTH, MARGIN, SCALE = 1000, 14, 1.6
#: Of the page, the two sides without what only a reader of the page needs.
ONLY_SIDES = """
    const style = document.createElement("style");
    const idle = ".shelf, .shelf-title, .log, .log-title, details, .player";
    style.textContent = idle + " { display: none } body { padding: 22px }";
    document.head.append(style);
    const box = document.getElementById("stage").getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height];
"""


def main(folder: Path) -> None:
    """Take it in the light and in the dark."""
    with tempfile.TemporaryDirectory() as scratch, chromium(Path(scratch) / "profile") as browser:
        file = Path(scratch) / "live.html"
        file.write_text(page(), encoding="utf-8")
        screen = {"width": WIDTH, "height": 900, "deviceScaleFactor": SCALE, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for scheme in ("light", "dark"):
            features = [
                {"name": "prefers-color-scheme", "value": scheme},
                {"name": "prefers-reduced-motion", "value": "reduce"},
            ]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.get("about:blank")
            browser.get(f"{file.as_uri()}#{MOMENT}")
            left, top, width, height = browser.execute_script(ONLY_SIDES)
            clip = {"x": left - MARGIN, "y": top - MARGIN, "width": width + 2 * MARGIN}
            clip |= {"height": height + 2 * MARGIN, "scale": 1}
            taken = browser.execute_cdp_cmd(
                "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
            )
            (folder / f"walkthrough-{scheme}.png").write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
