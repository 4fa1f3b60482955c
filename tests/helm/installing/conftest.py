"""Kubernetes' API server with its controllers, and a node that says that all goes well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from chart_support import require
from peers.kubernetes.control_plane import ControlPlane, control_plane, missing
from pretended_node import PretendedNode


@dataclass(frozen=True, slots=True)
class Kubernetes:
    plane: ControlPlane
    node: PretendedNode


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    why = missing()
    require(why or "Kubernetes", why is None)
    with control_plane(tmp_path_factory.mktemp("plane")) as plane, PretendedNode(plane) as node:
        for definition in yaml.safe_load_all((Path(__file__).parent / "definitions.yaml").read_text()):
            plane.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        yield Kubernetes(plane, node)
