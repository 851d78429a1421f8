"""Ordered tasks in a Django project: ``INSTALLED_APPS += ["celery_lowkiq.contrib.django"]``.

``urls`` has the dashboard, ``checks`` what ``manage.py check`` finds, ``test`` a mixin for test cases.
"""
