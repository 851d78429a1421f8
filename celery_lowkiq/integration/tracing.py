"""Tracing by OpenTelemetry: links the span of a run of several calls to the spans in which they were made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from itertools import islice

from celery_lowkiq.integration.records import CallRecord

# OpenTelemetry's own instrumentation of Celery's signals does all else; the headers that it gives to a call
# come with the call's record. This module does nothing unless the process has imported OpenTelemetry.

#: OpenTelemetry's default limit of links for a span.
MOST_LINKS = 128


def link_calls(calls: Callable[[], Iterable[CallRecord]]) -> None:
    """Add a link for each call to the current span. Reads the calls only if there is one."""
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagate import extract

    span = trace.get_current_span()
    if not span.is_recording():
        return
    for record in islice(calls(), MOST_LINKS):
        caller = trace.get_current_span(extract(record.headers, Context())).get_span_context()
        if caller.is_valid:
            span.add_link(caller)
