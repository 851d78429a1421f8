"""Event loops for ``async def`` tasks: lanes wait, while coroutines run on them.

Lanes, Celery's tracer, signals, middlewares and the store stay synchronous: only the body of the function is
asynchronous. Imports nothing of this package but settings and errors.
"""
