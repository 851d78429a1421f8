"""Sphinx settings."""

project = "celery-lowkiq"
copyright = "2026, celery-lowkiq contributors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "celery-lowkiq"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
