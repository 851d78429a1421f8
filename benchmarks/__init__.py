"""What a job costs, beside Sidekiq and plain Celery. docs/performance.md says how to read it."""
