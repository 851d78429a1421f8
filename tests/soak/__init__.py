"""Soak runs: a cluster under steady load, deploys and kills for hours. ``nox -s soak -- --hours 1``."""
