"""Trackers of groups of calls: counts by state, the state and messages of each call.

Imports ``scripts`` and ``jobs``. Imported by ``integration`` only.
"""
