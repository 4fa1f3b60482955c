"""The files that watch a worker: alert rules, runbooks and dashboards; and the programs that judge them."""

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
    """Where it is; the test is skipped without it, or fails where all are required."""
    if (found := shutil.which(name)) is not None:
        return found
    reason = f"there is no {name}: on Debian, apt install prometheus; .ci/monitoring does so"
    if os.environ.get("REPLICATOR_MONITORING") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


def rules() -> list[dict[str, Any]]:
    """All alert rules of the file."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    """Those that show something."""
    yield from (panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row")


def expressions(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Of each panel its title and each expression, with values in place of Grafana's variables."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$cluster", ".+")


def named(expression: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\b(?:replicator|process)_\w+|\bup\b", expression))


def exported() -> set[str]:
    """The names of all series that a worker exports, without those that are gone in the next version."""
    of_histograms = {
        f"{each.exported}_{part}"
        for each in METRICS
        if each.kind is Kind.HISTOGRAM
        for part in ("bucket", "sum", "count")
    }
    others = {each.exported for each in METRICS if each.kind is not Kind.HISTOGRAM}
    return of_histograms | others | {each.name for each in PROCESS}
