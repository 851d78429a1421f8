"""What a job costs, beside plain Celery. docs/performance.md says how to read it."""
