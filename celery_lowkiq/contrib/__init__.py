"""Ordered tasks within other frameworks; each folder imports its framework, and nothing below imports it."""
