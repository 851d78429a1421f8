"""Checks of the code that no tool on PyPI makes: ``python -m tests.lint``, which ``nox -s lint`` runs."""
