"""Lowkiq's view of one Celery app: settings, the store, codecs, the registry of ordered tasks.

It turns ``app.conf`` into checked settings and one :class:`AppContext` per app. Also here: names of options,
rates and durations as Celery writes them, and safe logging of user exceptions.
Imports ``rules`` and ``store``. Every other package of ``integration`` may import it.
"""
