"""``run_in="process"``: each lane runs batches in a child process, which can be killed, and may die alone.

``process_runner`` gives a lane's batches to its ``lane_process``, and decides what the end of a child means.
``child`` is the main function of the child: a run there is what it is in a lane. ``messages`` are what they
send each other.
"""
