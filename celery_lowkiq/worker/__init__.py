"""The engine of a node: threads that own shards and run their jobs. Knows neither Redis nor Celery.

``lane/`` claims, runs and settles jobs; ``ownership/`` acquires and renews leases; ``runtime`` starts both.
Order of imports: single modules here < ``lane/`` < ``ownership/`` < ``runtime``. ``ports`` states what the
engine needs from outside. May import ``rules/``; ``integration/`` and the layers above may import it.
"""
