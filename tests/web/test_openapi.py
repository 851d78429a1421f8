"""Whatever is asked, the API answers as its description says, and never with an error of its own."""

from __future__ import annotations

import json
import re

import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from celery_lowkiq.web import make_app
from celery_lowkiq.web.api import description
from celery_lowkiq.web.app import ENDPOINTS
from celery_lowkiq.web.endpoints import BASE
from tests.marks import examples

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
DESCRIPTION = description("/", ENDPOINTS)
PATHS = DESCRIPTION["paths"]


def operations(wrong: bool):
    """All, or those that a wrong request can reach."""
    return [
        (path, method)
        for path, methods in PATHS.items()
        for method, operation in methods.items()
        if not wrong
        or "requestBody" in operation
        or any(parameter["in"] == "query" for parameter in operation["parameters"])
    ]


def test_each_route_is_described_and_nothing_else(app):
    """T2: /shards and /paused_ids were missing, and so they were never asked for."""
    routes = {
        (route.path.removeprefix(BASE), method.lower())
        for route in make_app(app).routes
        if route.path.startswith(f"{BASE}/")
        for method in route.methods - {"HEAD"}
    }
    assert {(path, method) for path, methods in PATHS.items() for method in methods} == routes


def test_records_are_described_field_by_field():
    """The schemas are made from the types that are sent, with what is computed."""
    schemas = DESCRIPTION["components"]["schemas"]
    assert {"Job", "DeadJob", "JobSearchPage", "DeadJobSearchPage", "Payload", "Overview", "Why"} <= set(
        schemas
    )
    assert schemas["NodeReport"]["properties"]["alive"] == {"type": "boolean"}
    assert schemas["Counts"]["properties"]["total"] == {"type": "integer"}
    assert schemas["Job"]["properties"]["error"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert schemas["JobSearchPage"]["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Job"}


def test_each_schema_is_used():
    """T2: a schema that no route answers with shows that a route is missing."""
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DESCRIPTION)))
    assert names == set(DESCRIPTION["components"]["schemas"])


@pytest.fixture
def api(app):
    """With something of everything in it."""
    record, outcome = app.tasks["record"], app.tasks["outcome"]
    record.delay("1", {"a": 1})
    outcome.delay("1", "x")
    outcome.ordered_queue.bury(["1"])
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", make_app(app, auth=lambda _: "fuzz"))


@pytest.mark.random
@pytest.mark.parametrize("path, method", operations(wrong=False))
def test_the_api_does_what_it_says(api, path, method):
    check(api[path][method], GenerationMode.POSITIVE)


@pytest.mark.random
@pytest.mark.parametrize("path, method", operations(wrong=True))
def test_a_wrong_request_is_refused_as_described(api, path, method):
    check(api[path][method], GenerationMode.NEGATIVE)


def check(operation, mode):
    @given(case=operation.as_strategy(generation_mode=mode))
    @examples(25)
    def ask(case):
        if case.query and mode is GenerationMode.POSITIVE:
            case.query["queue"] = "record"
        case.call_and_validate(checks=CHECKS)

    ask()
