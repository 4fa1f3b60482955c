"""An upgrade from the chart that was recorded: it changes nothing that Kubernetes keeps, and takes the same values."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from chart_support import CHART, KUBERNETES, LOADER, RELEASE, VALUES, Object, helm, recorded_chart, rendered_text

SETS: Final = ("minimal", "secure", "spark-kubernetes", "everything", "restore")
MAY_CHANGE: Final = (
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds"),
    "persistentVolumeClaimRetentionPolicy",
)
"""Fields of a StatefulSet that Kubernetes lets an upgrade change."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_chart(tmp_path_factory.mktemp("recorded"))


def kept(objects: list[Object]) -> Mapping[tuple[str, str], Any]:
    """Return the fields that no upgrade can change, by an object's kind and name."""
    found: dict[tuple[str, str], Any] = {}
    for each in objects:
        spec = each.get("spec", {})
        match each["kind"]:
            case "StatefulSet":
                field: Any = {key: value for key, value in spec.items() if key not in MAY_CHANGE}
            case "Deployment":
                field = spec["selector"]
            case "Service":
                field = spec.get("clusterIP")
            case "RoleBinding":
                field = each["roleRef"]
            case _:
                continue
        found[each["kind"], each["metadata"]["name"]] = deepcopy(field)
    return found


@pytest.mark.parametrize("values", SETS)
def test_an_upgrade_from_the_recorded_chart_changes_nothing_that_kubernetes_keeps(values: str, before: Path) -> None:
    was, now = (
        kept([each for each in yaml.load_all(rendered_text(values, chart=chart), Loader=LOADER) if each])
        for chart in (before, CHART)
    )
    assert {name for name in was if name[0] == "StatefulSet"} == {name for name in now if name[0] == "StatefulSet"}
    assert {name: (field, now[name]) for name, field in was.items() if name in now and now[name] != field} == {}


def test_values_of_the_recorded_chart_are_still_taken(before: Path) -> None:
    """Some users keep a whole copy of an earlier chart's values."""
    helm(
        *("template", RELEASE, CHART, "--kube-version", KUBERNETES, "--values", before / "values.yaml"),
        *("--values", VALUES / "minimal.yaml"),
    )


def test_a_claim_that_would_change_is_found_out(before: Path) -> None:
    objects = [each for each in yaml.load_all(rendered_text("minimal", chart=before), Loader=LOADER) if each]
    was = kept(objects)
    (stateful,) = (each for each in objects if each["kind"] == "StatefulSet")
    stateful["spec"]["template"]["spec"]["containers"] = []
    assert kept(objects) == was
    stateful["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"]["app.kubernetes.io/name"] = "other"
    assert kept(objects) != was
