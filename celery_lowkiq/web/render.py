"""Renders templates, with the filters and functions that all of them use."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from celery_lowkiq.integration.current import naming
from celery_lowkiq.rules.health import expected
from celery_lowkiq.rules.text import (
    TERMS,
    Terms,
    clock_element,
    duration,
    lacking,
    last_error_line,
    number,
    size,
    time_element,
    with_moments,
)
from celery_lowkiq.web import formatting
from celery_lowkiq.web.auth import TOKEN, path_of, user_of
from celery_lowkiq.web.charts import history_chart, sparkline, stacked_bar
from celery_lowkiq.web.site import site_of

FILTERS: dict[str, Callable[..., Any]] = {
    "plain": formatting.plain,
    "duration": duration,
    "number": number,
    "per_second": formatting.per_second,
    "size": size,
    "score": formatting.score,
    "age": formatting.age,
    "code": formatting.code,
    "lacking": lacking,
    "error_line": lambda error: last_error_line(error or ""),
}


#: Parameters by which a form's page reports an operation that it began, or an error of the form.
REPORTS = ("did", "refused")


@cache
def _version(name: str) -> str:
    """A hash of the file: browsers may cache it forever."""
    data = resources.files(__package__).joinpath(f"static/{name}").read_bytes()
    return hashlib.sha256(data).hexdigest()[:12]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    environment.tests["score_time"] = formatting.is_time
    environment.globals.update(
        clock_element=clock_element,
        expected=expected,
        history_chart=history_chart,
        sparkline=sparkline,
        stacked_bar=stacked_bar,
        time_element=time_element,
        with_moments=with_moments,
    )
    # In one thread: Python 3.11 raises SystemError when several parse numbers of templates at once.
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


ENVIRONMENT = _environment()


def link(request: Request, path: str, **query: Any) -> str:
    """A URL path under the prefix of the dashboard. Ids go into the query: some are invalid in a path."""
    return quote(request.scope.get("root_path", "")) + link_here(path, **query)


def link_here(path: str, **query: Any) -> str:
    """The same without the prefix."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return path + ("?" + urlencode(given, errors="replace") if given else "")


def _current(request: Request) -> str:
    """Path and query of the page, without prefix, and without what it reports."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in REPORTS]
    return quote(path_of(request.scope) or "/") + ("?" + urlencode(kept, errors="replace") if kept else "")


def page(
    request: Request, template: str, *, status: int = 200, current: str | None = None, **values: Any
) -> HTMLResponse:
    """Render a page. ``current``: path and query of it, where those of the request are another's."""
    now, site = time.time(), site_of(request)
    text = ENVIRONMENT.get_template(template).render(
        link=lambda path, **query: link(request, path, **query),
        link_here=link_here,
        static=lambda name: link(request, f"/static/{name}", v=_version(name)),
        here=path_of(request.scope) or "/",
        terms=Terms(),
        meanings=TERMS,
        plain_text=formatting.plain,
        now=now,
        moving=values.pop("moving", False),
        user=user_of(request.scope),
        read_only=site.read_only or not user_of(request.scope).may_change,
        current=current or _current(request),
        did=site.operations.get(request.query_params.get("did", "")),
        refused=values.pop("refused", "") or site.operations.refusal(request.query_params.get("refused", "")),
        token=request.scope.get(TOKEN, ""),
        site=site,
        naming=lambda command: naming(command, site.app),
        **values,
    )
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), status_code=status)
