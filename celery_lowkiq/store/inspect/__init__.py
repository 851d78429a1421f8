"""Reads for people: jobs, counts, nodes, health. No job waits for any of it.

Listings are paged and bounded.
Imports ``scripts``, ``jobs``, ``leases`` and ``redis_store``. Imported by ``admin`` and ``integration``.
"""
