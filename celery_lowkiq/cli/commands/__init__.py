"""The commands: a module has one, of its own name (``run_now.py`` has ``run_now``, which is ``run-now``).

They are imported when they are asked for: every ``celery`` command imports the group, also a worker's.
"""
