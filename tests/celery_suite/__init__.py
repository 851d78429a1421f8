"""Celery's own integration tests, with plain tasks and with the same tasks ordered in place."""
