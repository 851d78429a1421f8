"""Puts the live walkthrough together: one page with its style, its script and the recorded traces within."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "walkthrough"
#: The font of the dashboard.
FONT = HERE.parents[1] / "celery_lowkiq" / "web" / "static" / "inter.woff2"
FACE = (
    "/* Inter, under the SIL Open Font License 1.1 */ "
    "@font-face {{ font-family: Inter; font-weight: 100 900; "
    'src: url(data:font/woff2;base64,{}) format("woff2"); }}'
)
#: The order of the traces on the page.
ORDER = ("merge", "failure", "kill", "twice", "hold", "reshard")


def page() -> str:
    """Return the page as one HTML document that loads nothing."""
    face = FACE.format(base64.b64encode(FONT.read_bytes()).decode())
    traces = ",\n".join((HERE / "traces" / f"{name}.json").read_text().strip() for name in ORDER)
    style, script = (HERE / "page.css").read_text(), (HERE / "page.js").read_text()
    inside = f"[{traces}]".replace("</", "<\\/")
    parts = {
        '<link rel="stylesheet" href="page.css">': f"<style>\n{face}\n{style}</style>",
        'id="traces">[]</script>': f'id="traces">{inside}</script>',
        '<script src="page.js"></script>': f"<script>\n{script}</script>",
    }
    whole = (HERE / "page.html").read_text()
    for place, text in parts.items():
        if place not in whole:
            raise ValueError(f"page.html lacks {place}")
        whole = whole.replace(place, text)
    return whole


def write(app: Any, error: Exception | None) -> None:
    """Write the page beside the pages of the documentation."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "live.html").write_text(page())


def setup(app: Any) -> dict[str, bool]:
    """Of Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
