"""Random changes of the package's Python, and how many of them the tests notice: ``nox -s mutants``."""
