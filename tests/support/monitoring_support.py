"""Alert rules, runbooks and dashboards of a worker, and the programs that check them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from replicator.api.metrics.catalogue import METRICS, PROCESS
from replicator.api.metrics.declared import Kind

ROOT: Final = Path(__file__).parents[2]
FILES: Final = ROOT / "helm" / "replicator" / "files"
ALERTS: Final = FILES / "alerts.yaml"
RUNBOOKS: Final = ROOT / "docs" / "runbooks.md"
DASHBOARDS: Final = sorted((FILES / "dashboards").glob("*.json"))
OF_PROMETHEUS: Final = frozenset({"up"})


def program(name: str) -> str:
    """Return the path of a program. Skip the test if it is missing, or fail it if all programs are required."""
    if (found := shutil.which(name)) is not None:
        return found
    reason = f"there is no {name}: on Debian, apt install prometheus; .ci/monitoring does so"
    if os.environ.get("REPLICATOR_MONITORING") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def rules() -> list[dict[str, Any]]:
    """Return all alert rules of the file."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Yield the panels that show data; rows of panels are left out."""
    yield from (panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row")


def expressions(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Yield each expression of a dashboard with its panel's title, with values in place of Grafana's variables."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$cluster", ".+")


def named(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(re.findall(r"\b(?:replicator|process)_\w+|\bup\b", expression))


def exported() -> set[str]:
    """Return the names of all series that a worker exports, except those that the next version removes."""
    of_histograms = {
        f"{each.exported}_{part}"
        for each in METRICS
        if each.kind is Kind.HISTOGRAM
        for part in ("bucket", "sum", "count")
    }
    others = {each.exported for each in METRICS if each.kind is not Kind.HISTOGRAM}
    return of_histograms | others | {each.name for each in PROCESS}


def fires(alert: str, scraped: str) -> bool:
    """Return whether an alert is true of what ``GET /metrics`` gave. It must compare metrics with numbers."""
    (expressions,) = [rule["expr"].split(" and ") for rule in rules() if rule["alert"] == alert]
    return all(_is_true(expression, scraped) for expression in expressions)


def _is_true(expression: str, scraped: str) -> bool:
    said = re.fullmatch(r'(\w+)\{cluster=~"\.\+"\} (==|>) (\d+)', expression)
    assert said is not None, f"it has another form: {expression}"
    metric, comparison, limit = said[1], said[2], float(said[3])
    values = [float(value) for value in re.findall(rf"^{metric}\{{[^}}]*\}} (\S+)$", scraped, re.MULTILINE)]
    assert values, f"{metric} is not exported"
    return any(value > limit if comparison == ">" else value == limit for value in values)
