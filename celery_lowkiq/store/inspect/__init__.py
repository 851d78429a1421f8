"""Reads for people: jobs, counts, nodes, health. No run depends on them.

Listings are paged and bounded.
Imports ``scripts``, ``jobs``, ``leases`` and ``redis_store``. Imported by ``admin`` and ``integration``.
"""
