"""One worker thread and its shards: when each shard has due jobs, which one is next, claim, run, settle.

``lane`` is the thread, ``lane_state`` what other threads see of it, and ``claim_cycle`` claims, runs and
settles.
May import the modules of ``worker/`` beside it, but ``runtime``; never ``ownership/``, which uses it.
"""
