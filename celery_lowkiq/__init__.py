"""Ordered tasks for Celery: calls of one id are merged, kept in order, and never run twice at once."""
