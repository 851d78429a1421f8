"""Migrations: a queue moves to another number of shards while it is in use, and keeps the order of each id.

Imports ``scripts`` and ``jobs``.
"""
