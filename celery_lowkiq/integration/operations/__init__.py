"""What operators do: read, pause, requeue, bury, delete, dump and load.

``queue`` is ``task.ordered_queue``; ``inspector`` answers for all queues of an app. CLI, web and Flower use
these two.
Imports ``app``, ``records``, ``calls`` and ``tracking``. Imported by ``task``, ``bootstep`` and the edges.
"""
