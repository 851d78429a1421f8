"""The way of a call from ``delay`` to the store.

Ids, payloads, scores and times are checked here; ``producer`` stores a call in place of publishing it, and
``fast_path`` does so without a Celery message when nothing would observe one.
Imports ``app`` and ``records``. Imported by ``tracking``, ``runs``, ``operations`` and ``task``.
"""
