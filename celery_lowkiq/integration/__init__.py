"""Celery's and kombu's side: the task, its calls, and the worker's bootstep."""
