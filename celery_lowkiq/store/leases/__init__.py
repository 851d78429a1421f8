"""Leases of shards and heartbeats of nodes.

Acquire and renew a shard; the reports of nodes.
Imports ``scripts`` and ``jobs``. Imported by ``redis_store`` and ``inspect``.
"""
