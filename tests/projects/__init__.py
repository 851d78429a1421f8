"""Real Celery projects, installed or fetched, not copied: a task is switched from outside, by one line."""
