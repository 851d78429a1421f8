"""Which shards this node serves: leases are acquired, renewed, shared with other nodes, and released.

``ownership`` is the thread that does it, ``lease_table`` what it knows, and each other module is one of its
steps: ``acquisition``, ``rebalancing``, ``resizing``, ``heartbeat``, ``membership``, and the monitors.
May import ``lane/`` and the modules of ``worker/`` beside it; only ``runtime`` imports it.
"""
