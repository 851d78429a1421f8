"""One worker thread and its shards: when each shard has due jobs, which one is next, claim, run, settle.

``lane`` is the thread, ``batch_runner`` claims, runs and settles, ``due_poll`` asks Redis for the due times
of all idle lanes of the node.
May import the modules of ``worker/`` beside it, but ``runtime``; never ``ownership/``, which uses it.
"""
