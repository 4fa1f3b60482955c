"""The dashboards by Grafana's own model of them, made by Grafana from its schemas: it knows every field they have."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from monitoring_support import DASHBOARDS, panels

SDK: Final = "grafana_foundation_sdk"

if os.environ.get("REPLICATOR_MONITORING") != "required":
    pytest.importorskip(SDK, reason="there is no grafana-foundation-sdk: .ci/monitoring installs it")


def read_by_grafana(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return the dashboard as Grafana's model keeps it: without the fields that the model does not know."""
    cog = f"{SDK}.cog"
    importlib.import_module(f"{cog}.plugins").register_default_plugins()
    model = importlib.import_module(f"{SDK}.models.dashboard").Dashboard
    kept = model.from_json(json.loads(json.dumps(dashboard)))
    written: dict[str, Any] = json.loads(importlib.import_module(f"{cog}.encoder").JSONEncoder().encode(kept))
    return written


def lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of what ``before`` has and ``after`` lacks or has otherwise.

    Keys that only ``after`` has do not count.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (was, now) in enumerate(zip(before, after, strict=True)):
            yield from lost(was, now, f"{where}[{index}]")
    elif before != after:
        yield where


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_knows_every_field_of_a_dashboard(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    assert list(lost(dashboard, read_by_grafana(dashboard))) == []
    dashboard["panels"][1]["fieldConfig"]["defaults"]["unitz"] = "s"
    assert list(lost(dashboard, read_by_grafana(dashboard))) == [".panels[1].fieldConfig.defaults.unitz"]


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_are_told_apart_lie_beside_each_other_and_say_what_they_show(file: Path) -> None:
    every = json.loads(file.read_text())["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert max(columns) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(file):
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}, panel["title"]
