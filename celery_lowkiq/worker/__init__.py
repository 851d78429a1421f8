"""Lanes, ownership and waking: the engine of a node, knowing neither Redis nor Celery."""
