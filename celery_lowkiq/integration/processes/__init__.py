"""``run_in="process"``: each lane runs batches in a child process, which can be killed, and may die alone.

``child_runs`` gives a lane's batches to its ``child_handle``, and decides what the end of a child means.
``child`` is the main function of the child: a run there is what it is in a lane. ``messages`` are what they
send each other.
"""
