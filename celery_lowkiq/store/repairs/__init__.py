"""Repair of shards that have lost keys.

Each key is rewritten from other keys with the same information.
Imports ``scripts``. Imported by ``jobs``, ``redis_store`` and ``admin``.
"""
