"""Integration with Celery's worker: bootstep, remote control, signals and shutdown.

``step`` decides what to serve, ``engine`` runs it (``celery_lowkiq.worker``), ``shutdown`` ends it.
Imports every other package of ``integration``, and ``worker``. Imported by Celery and ``cli`` only.
"""
