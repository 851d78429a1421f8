"""Leases of shards and heartbeats of nodes.

Taking, renewing and releasing a shard, and what a node reports of itself.
Imports ``scripts`` and ``jobs``. Imported by ``redis_store`` and ``inspect``.
"""
