"""Releases side by side: another one of the same storage format, and this checkout."""
