"""The command line, ``celery -A proj lowkiq ...``: a command is a module of ``commands``."""
