"""The chart's objects for Prometheus and Grafana have the content of their files, for the release's cluster alone."""

from __future__ import annotations

import json
from typing import Any

from chart_support import Object, one, rendered
from monitoring_support import DASHBOARDS, rules


def made(values: str, *arguments: str) -> list[dict[str, Any]]:
    """All rules of the release."""
    objects: list[Object] = rendered(values, "--set", "prometheusRule.enabled=true", *arguments)
    return [rule for group in one(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


def test_the_rules_of_a_release_are_those_of_the_file_for_its_cluster_alone() -> None:
    found = made("minimal")
    assert [rule["alert"] for rule in found] == [rule["alert"] for rule in rules()]
    down, *others = found
    assert down["expr"] == 'absent(up{job="us-east-replicator",namespace="regions"} == 1)'
    for rule, original in zip(others, rules()[1:], strict=True):
        assert rule == {**original, "expr": original["expr"].replace('cluster=~".+"', 'cluster="us-east"')}


def test_the_lag_and_the_place_of_the_runbooks_are_values_of_the_chart() -> None:
    place = "https://runbooks.example/replicator.html"
    found = made("minimal", "--set", "prometheusRule.linkLagSeconds=90", "--set", f"prometheusRule.runbooks={place}")
    assert [rule["expr"] for rule in found if "lag_seconds" in rule["expr"]] == [
        'replicator_link_lag_seconds{cluster="us-east"} > 90 and replicator_link_paused{cluster="us-east"} == 0'
    ]
    assert all(rule["annotations"]["runbook_url"] == f"{place}#{rule['alert'].lower()}" for rule in found)


def test_rules_of_ones_own_stand_beside_them() -> None:
    assert made("everything")[-1]["alert"] == "BacklogIsLarge"


def test_the_dashboards_are_a_configmap_that_grafana_finds() -> None:
    objects = rendered("minimal", "--set", "dashboards.enabled=true")
    found = one(objects, "ConfigMap", "us-east-replicator-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: json.loads(path.read_text()) for path in DASHBOARDS}
    assert len(found["data"]) == len(files)
    for name, text in found["data"].items():
        file = files[name.removeprefix("regions-us-east-replicator-")]
        made = json.loads(text)
        assert (made["uid"].partition("-")[2], made["title"]) == (
            file["uid"],
            f"regions/us-east-replicator: {file['title']}",
        )
        assert made == {**file, "uid": made["uid"], "title": made["title"]}
    assert not [each for each in rendered("minimal") if each["metadata"]["name"].endswith("-dashboards")]


def test_a_service_monitor_has_what_it_is_given() -> None:
    rule = '[{"sourceLabels": ["pod"], "targetLabel": "worker"}]'
    given = (
        *("--set", "serviceMonitor.enabled=true,serviceMonitor.namespace=monitoring,serviceMonitor.honorLabels=true"),
        *("--set-json", f"serviceMonitor.relabelings={rule}", "--set-json", f"serviceMonitor.metricRelabelings={rule}"),
    )
    monitor = one(rendered("minimal", *given), "ServiceMonitor")
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["regions"]}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["relabelings"] == endpoint["metricRelabelings"] == json.loads(rule)
