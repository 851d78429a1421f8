"""The context of a Celery app: settings, the store, codecs, the registry of ordered tasks.

It turns ``app.conf`` into checked settings and one :class:`AppContext` per app. Also here: option names,
rates and durations in Celery's notation, and safe logging of user exceptions.
Imports ``rules`` and ``store``. Every other package of ``integration`` may import it.
"""
