"""Repair of shards that have lost keys.

Each key is written again from those that tell the same.
Imports ``scripts``. Imported by ``jobs``, ``redis_store`` and ``admin``.
"""
