"""Trackers of groups of calls: counts, the state of each call, its messages.

Imports ``scripts`` and ``jobs``. Imported by ``integration`` only.
"""
