"""Call records: what is stored about a call until its job has ended.

A record keeps the task id and those parts of the message that a plain job does not carry. Calls whose jobs
are deleted or buried are finished here too.
Imports ``app``. Imported by ``calls``, ``runs``, ``operations`` and ``task``.
"""
