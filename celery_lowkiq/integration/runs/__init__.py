"""A run of a batch: from claimed bytes to settlements and results.

``decode`` presents a batch to the task function, ``run`` decides what becomes of each job, and
``batch_calls``, ``tracker_updates`` and ``failure_log`` report it.
Imports ``app``, ``records``, ``calls`` and ``tracking``. Imported by ``task`` and ``bootstep``.
"""
