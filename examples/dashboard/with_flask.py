"""Flask (and any other WSGI application): a2wsgi in between.

flask --app examples.dashboard.with_flask:site run
"""

from __future__ import annotations

import os

from a2wsgi import ASGIMiddleware
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from celery_lowkiq.web import make_app

from .shop import app

site = Flask(__name__)


@site.get("/")
def hello() -> dict[str, str]:
    """The application itself."""
    return {"dashboard": "/ops/queues/"}


dashboard = make_app(app, auth=os.environ.get("DASHBOARD_AUTH", "ops:change me"))
site.wsgi_app = DispatcherMiddleware(site.wsgi_app, {"/ops/queues": ASGIMiddleware(dashboard)})
