"""Whole clusters in virtual time: the real worker code, a Redis in memory, and faults from a seed."""
