"""Other versions of Helm make the same of the chart. ``make soak`` builds them; elsewhere these tests are skipped."""

from __future__ import annotations

from typing import Final

import pytest
import yaml
from chart_support import LOADER, SETS, HelmRefused, Object, rendered_text
from peers.kubernetes.control_plane import where

VERSIONS: Final = ("helm-3.14.4", "helm-4.3.2")
"""The oldest one that the chart is tried with, and the newest."""


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if where(name) is None:
        pytest.skip(f"{name} is not built here: tests/peers/kubernetes/fetch {name}")
    return name


def objects(values: str, *arguments: str, version: str = "helm") -> dict[tuple[str, str], Object]:
    """Return rendered objects by kind and name: versions of helm differ in empty lines, and may in the order."""
    made = yaml.load_all(rendered_text(values, *arguments, version=version), Loader=LOADER)
    return {(each["kind"], each["metadata"]["name"]): each for each in made if each}


@pytest.mark.parametrize("values", SETS)
def test_another_helm_makes_the_same_objects(values: str, version: str) -> None:
    assert objects(values, version=version) == objects(values)


def test_another_helm_refuses_what_is_wrong(version: str) -> None:
    with pytest.raises(HelmRefused, match="replicas"):
        rendered_text("minimal", "--set", "replicas=2", version=version)
    with pytest.raises(HelmRefused, match=r"give backup\.existingClaim"):
        rendered_text("minimal", "--set", "backup.enabled=true", version=version)


def test_a_null_is_unset_with_another_helm_too(version: str) -> None:
    given = ("--set", "probes.liveness=null,networkPolicy=null,test.pod=null")
    assert objects("minimal", *given, version=version) == objects("minimal", *given)
