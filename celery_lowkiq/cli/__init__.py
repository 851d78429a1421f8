"""``celery -A proj lowkiq ...``."""
