"""The command line, ``celery -A proj lowkiq ...``."""
