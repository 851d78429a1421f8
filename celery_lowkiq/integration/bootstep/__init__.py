"""Integration with Celery's worker: bootstep, remote control, signals and shutdown.

``step`` starts and stops the engine (``celery_lowkiq.worker``) with Celery's consumer.
Imports every other package of ``integration``, and ``worker``. Nothing imports it but Celery.
"""
