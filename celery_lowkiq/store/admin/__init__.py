"""What an operator changes: jobs, pauses, dumps, repairs; in bounded steps.

Each Lua file stands beside the Python that calls it.
Imports everything below; imported by ``integration`` only.
"""
