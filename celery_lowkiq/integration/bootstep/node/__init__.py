"""The node process: lanes beside Celery's pool of processes, which is not to be forked beside lanes.

``supervisor`` is the bootstep's engine, ``launch`` starts the process with ``options`` and has its main
function, and ``server`` serves the queues there.
"""
