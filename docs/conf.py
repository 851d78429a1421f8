"""Sphinx settings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "celery-lowkiq"
copyright = "2026, celery-lowkiq contributors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "markdown_twins", "walkthrough"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "celery-lowkiq"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
exclude_patterns = ["_build", "_ext"]
