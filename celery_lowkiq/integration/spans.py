"""The span of a run of several calls links to the spans that its calls were made in.

OpenTelemetry's own instrumentation does all else: it hears Celery's signals, and the headers that it gives to
a call come with the call's record. Where nobody has imported OpenTelemetry, nothing happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

#: As many links does a span keep, unless OpenTelemetry is told otherwise.
MOST_LINKS = 128


def link_calls(headers: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Add a link for each call to the current span, if there is one; the headers are read only then."""
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    span = trace.get_current_span()
    if not span.is_recording():
        return
    for found in islice(headers(), MOST_LINKS):
        caller = trace.get_current_span(extract(found, Context())).get_span_context()
        if caller.is_valid:
            span.add_link(caller)
