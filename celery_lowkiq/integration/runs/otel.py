"""The span of a run of several calls links to the spans that its calls were made in.

OpenTelemetry's own instrumentation does all else: it hears Celery's signals, and the headers that it gives to
a call come with the call's record. Where nobody has imported OpenTelemetry, nothing happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice

from celery_lowkiq.integration.records.call_record import CallNote

#: As many links does a span keep, unless OpenTelemetry is told otherwise.
MOST_LINKS = 128


def link_calls(calls: Callable[[], Iterable[CallNote]]) -> None:
    """Add a link for each call to the current span, if there is one; the calls are read only then."""
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    span = trace.get_current_span()
    if not span.is_recording():
        return
    for note in islice(calls(), MOST_LINKS):
        caller = trace.get_current_span(extract(note.headers, Context())).get_span_context()
        if caller.is_valid:
            span.add_link(caller)
