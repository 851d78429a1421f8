"""Sphinx settings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "celery-lowkiq"
copyright = "2026, celery-lowkiq contributors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "markdown_twins", "walkthrough"]
myst_heading_anchors = 3
html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#4a45c9", "color-brand-content": "#4a45c9"},
    "dark_css_variables": {"color-brand-primary": "#aaa6fb", "color-brand-content": "#aaa6fb"},
}
html_title = "celery-lowkiq"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
exclude_patterns = ["_build", "_ext"]
