"""A git repository's tree, mirrored into SQLite from its history: by a plain task, then by an ordered one.

Run it with ``python -m examples.replica``.
"""
