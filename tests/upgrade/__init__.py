"""Releases side by side: the baseline, built from its commit, and this checkout."""
