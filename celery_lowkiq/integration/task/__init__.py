"""The ordered task: decorator, options, and what replaces Celery's ``Task`` methods.

Options are declared and checked here, once. ``call_mixin`` and ``run_mixin`` connect a task to ``calls`` and
``runs``; ``broker_messages`` takes calls that arrive through the broker.
Imports every package but ``bootstep``.
"""
