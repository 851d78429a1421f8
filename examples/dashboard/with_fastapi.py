"""FastAPI (and Starlette): mount it.

uvicorn examples.dashboard.with_fastapi:api
"""

from __future__ import annotations

import os

from fastapi import FastAPI

from celery_lowkiq.web import make_app

from .shop import app

api = FastAPI()


@api.get("/")
def hello() -> dict[str, str]:
    """The application itself."""
    return {"dashboard": "/ops/queues/"}


api.mount("/ops/queues", make_app(app, auth=os.environ.get("DASHBOARD_AUTH", "ops:change me")))
