"""Helpers of the tests of the chart: the real helm, the sets of values, and what helm renders of them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import peers_required
import yaml
from peers.kubernetes.control_plane import where

REPOSITORY: Final = Path(__file__).parents[2]
CHART: Final = REPOSITORY / "helm" / "replicator"
VALUES: Final = REPOSITORY / "tests" / "helm" / "values"
SETS: Final = tuple(sorted(path.stem for path in VALUES.glob("*.yaml")))
KUBERNETES: Final = "1.33.1"
"""Version of Kubernetes whose schemas and API server check the chart."""
RELEASE: Final = "us-east"
NAMESPACE: Final = "regions"
HELM_SECONDS_MAX: Final = 120
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader of rendered YAML; the one in C is seven times as fast."""

OF_OTHERS: Final = {
    "Certificate": "cert-manager",
    **dict.fromkeys(("ServiceMonitor", "PodMonitor", "PrometheusRule"), "Prometheus"),
    **dict.fromkeys(("HTTPRoute", "TLSRoute", "TCPRoute"), "Gateway API"),
}
"""Kinds that Kubernetes does not know by itself; the API server checks them by their definitions."""

Object = dict[str, Any]


class HelmRefused(Exception):
    """Helm refused values or a chart; the text is its own error."""


def require(program: str, there: bool) -> None:
    """Skip if a program is missing, or fail if ``REPLICATOR_PEERS=required``."""
    peers_required.require(None if there else f"{program} is not here: make helm-test fetches it")


def tools(program: str) -> Path:
    """Return the folder of kubernetes-validate and hadolint that ``tests/helm/fetch`` keeps for this Python."""
    found = subprocess.run(
        [REPOSITORY / "tests" / "helm" / "fetch", "--where"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )
    require(program, found.returncode == 0)
    return Path(found.stdout.strip())


@cache
def kubernetes_schemas() -> Any:
    """Return the package that validates objects by Kubernetes' schemas."""
    sys.path.append(str(tools("kubernetes-validate")))  # last: what is installed here wins
    import kubernetes_validate

    return kubernetes_validate


def helm(*arguments: str | Path, version: str = "helm") -> str:
    """Run helm and return its output; raise :class:`HelmRefused` if it fails."""
    folder = where(version)
    require("helm", folder is not None)
    assert folder is not None
    ran = subprocess.run(
        [folder / "helm", *arguments], capture_output=True, text=True, timeout=HELM_SECONDS_MAX, check=False
    )
    if ran.returncode != 0:
        raise HelmRefused(ran.stderr + ran.stdout)
    return ran.stdout


@cache
def rendered_text(
    values: str,
    *arguments: str,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    install: bool = False,
    chart: Path = CHART,
    version: str = "helm",
) -> str:
    """Return the output of ``helm template`` for a set of values: as for an upgrade, so with every hook, or as for an
    install.

    ``version`` is the name by which ``tests/peers/kubernetes/fetch`` knows another Helm.
    """
    return helm(
        *("template", release, chart, "--namespace", namespace, "--kube-version", KUBERNETES),
        *(() if install else ("--is-upgrade",)),
        *("--values", VALUES / f"{values}.yaml", *arguments),
        version=version,
    )


def rendered(
    values: str, *arguments: str, release: str = RELEASE, namespace: str = NAMESPACE, install: bool = False
) -> list[Object]:
    """Return the rendered objects, hooks among them."""
    text = rendered_text(values, *arguments, release=release, namespace=namespace, install=install)
    return [each for each in yaml.load_all(text, Loader=LOADER) if each]


def recorded_chart(into: Path) -> Path:
    """The chart of the version that upgrades begin with (``tests/recorded/record.py``), unpacked."""
    with zipfile.ZipFile(REPOSITORY / "tests" / "recorded" / "chart.zip") as packed:
        packed.extractall(into / "replicator")
    return into / "replicator"


def ordered_chart(into: Path) -> Path:
    """Return a chart older than :func:`recorded_chart`: its StatefulSet starts pods in order, and names no cluster."""
    chart = recorded_chart(into)
    stateful = chart / "templates" / "statefulset.yaml"
    text = stateful.read_text().replace("podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady")
    without = text.replace('(dict "replicator/cluster" .Values.cluster)', "dict")
    assert text.count("OrderedReady") > 1
    assert without != text
    stateful.write_text(without)
    return chart


def values_of(name: str) -> Object:
    """Return a set of values, over those of the chart."""
    return merged(
        yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    )


def one(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of a kind, or of that name."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]


def topology_of(objects: Sequence[Object]) -> Object | None:
    """Return the topology that the release makes itself."""
    for each in objects:
        if each["metadata"]["name"].endswith("-topology"):
            (text,) = (each.get("data") or each["stringData"]).values()
            return yaml.safe_load(text)
    return None


def merged(below: Object, above: Object) -> Object:
    result = dict(below)
    for key, value in above.items():
        is_section = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if is_section else value
    return result
