"""The dashboard, the alerts and the page on metrics speak of what a worker shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.waiting import eventually
from tests.worker.scraping import metrics_url, samples

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "contrib" / "grafana" / "dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text())
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
#: Expressions, and the text that fills in the labels of what they find.
SHOWN = [(target["expr"], target["legendFormat"]) for target in TARGETS]
SHOWN += [(rule["expr"], json.dumps(rule["annotations"])) for rule in RULES]


@pytest.fixture
def settings(settings):
    return settings | {"lowkiq_metrics_port": 0}


@pytest.fixture
def labels(app, start_worker) -> dict[str, set[str]]:
    """The labels of each metric of a worker that has run something, by the metric's name."""
    url = metrics_url(start_worker())
    app.tasks["record"].delay(1, "x")
    eventually(lambda: "lowkiq_run_seconds_count" in {sample.name for sample in samples(url)})
    found: dict[str, set[str]] = {}
    for sample in samples(url):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def names(text: str) -> list[str]:
    return re.findall(r"lowkiq_\w+", text)


@pytest.mark.full
def test_every_metric_and_label_of_the_dashboard_and_the_alerts_exists(labels):
    assert len(SHOWN) > 20
    for expression, text in SHOWN:
        assert names(expression), expression
        if "lowkiq_unverified_total" in expression:
            # It is there once a payload was refused.
            continue
        assert set(names(expression)) <= labels.keys(), expression
        for name, selector in re.findall(r"(lowkiq_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)[=!]", selector)) <= labels[name], expression
        common = set.intersection(*(labels[name] for name in names(expression)))
        asked = {
            label
            for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
            for label in group.split(", ")
        }
        assert asked <= common, expression
        named = set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", text))
        assert {label for pair in named for label in pair if label} <= (asked or common), text


@pytest.mark.full
def test_the_dashboard_chooses_among_the_queues(labels):
    (chosen,) = (v for v in DASHBOARD["templating"]["list"] if v["type"] == "query")
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", chosen["query"]).groups()
    assert label in labels[name]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_page_on_metrics_has_all_of_them_and_no_other(labels):
    shown = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in labels}
    # prometheus_client says of each counter when it was made, under the counter's name without "total".
    created = {name.removesuffix("_total") for name in shown if name.endswith("_total")}
    settings = {"lowkiq_metrics_port", "lowkiq_metrics_host"}
    # Behind sentinels and on clusters; and once a payload was refused.
    masters = {f"lowkiq_master_{name}" for name in ("up", "shards", "used_memory_bytes", "replicas")}
    elsewhere = masters | {"lowkiq_clock_skew_seconds", "lowkiq_unverified_total"}
    assert set(names((ROOT / "docs" / "metrics.md").read_text())) - settings == (shown - created) | elsewhere
