"""An app with an error of its own, which a call meets."""

from __future__ import annotations

from celery import Celery

from celery_lowkiq import ordered_task

app = Celery("failing", set_as_current=False)


def refuse(task, batch, call):
    """A client middleware that looks for a tenant that is not there."""
    return {}["tenant"]


app.conf.lowkiq_client_middlewares = [refuse]


@ordered_task(app=app, name="failing")
def failing(payloads_by_id):
    """Is never called."""
