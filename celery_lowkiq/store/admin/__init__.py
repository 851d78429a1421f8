"""Changes by an operator, in bounded steps: jobs, pauses, dumps, repairs.

Each Lua file stands beside the Python that calls it.
Imports everything below; imported by ``integration`` only.
"""
