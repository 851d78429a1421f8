"""Push, claim and settle: the life of a job in Redis, and the records of its calls.

Each Lua file stands beside the Python that calls it.
Imports ``scripts`` and ``repairs``. Imported by ``redis_store`` and the packages above it.
"""
