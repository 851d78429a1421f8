"""Pictures as SVG text, made of numbers only."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup


def bar(part: float, whole: float, kind: str = "") -> Markup:
    """How much of the whole, as a thin bar."""
    share = min(1.0, max(0.0, part / whole)) if whole else 0.0
    return Markup(  # noqa: S704 numbers and our own word
        f'<svg class="bar {kind}" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="bar-rail" width="100" height="4"/>'
        f'<rect class="bar-fill" width="{share * 100:.2f}" height="4"/></svg>'
    )


def points(values: Sequence[float], width: float, height: float, top: float) -> list[tuple[float, float]]:
    """Places of values side by side, the largest possible one at y = 0."""
    step = width / max(1, len(values) - 1)
    return [(i * step, height - (value / top * height if top else 0.0)) for i, value in enumerate(values)]
