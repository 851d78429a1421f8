"""Tracked groups of calls, as their caller sees them.

A :class:`Tracker` opens a group, waits for it and cancels it; ``announce`` adds calls to it before they
are pushed.
Imports ``app`` and ``calls``. Imported by ``runs``, ``operations`` and ``task``.
"""
