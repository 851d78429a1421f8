"""Puts the live walkthrough together: one page with its style, its script and the recorded traces within."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1] / "walkthrough"
#: The order of the traces on the page.
ORDER = ("merge", "failure", "kill", "twice", "hold", "reshard")


def page() -> str:
    """Return the page as one HTML document that loads nothing."""
    traces = ",\n".join((HERE / "traces" / f"{name}.json").read_text().strip() for name in ORDER)
    parts = {
        '<link rel="stylesheet" href="page.css">': f"<style>\n{(HERE / 'page.css').read_text()}</style>",
        '<script type="application/json" id="traces">[]</script>': (
            f'<script type="application/json" id="traces">[{traces}]</script>'.replace("</", "<\\/").replace(
                "<\\/script>", "</script>"
            )
        ),
        '<script src="page.js"></script>': f"<script>\n{(HERE / 'page.js').read_text()}</script>",
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
