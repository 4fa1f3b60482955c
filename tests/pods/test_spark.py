"""Spark with `master: k8s://…`: a driver in a Deployment asks the API server for executors, which run as pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pods.traffic import traffic
from pods_support import MERGE, REPOSITORY, Cluster

CHART: Final = REPOSITORY / "helm" / "replicator"
EAST: Final = "spark-east"
WEST: Final = "spark-west"
EXECUTOR: Final = "app.kubernetes.io/component=executor"
URLS: Final = [f"pulsar://{name}-replicator.{name}.svc:7101" for name in (EAST, WEST)]


def _values(cluster: str) -> dict[str, Any]:
    """Return values with a one-way link that Spark carries, so one driver is enough."""
    clusters = {name: {"address": f"{name}-replicator.{name}.svc:7101", "insecure": True} for name in (EAST, WEST)}
    pipeline = {"engine": "spark", "driver": "external", "batch": "2s"}
    values: dict[str, Any] = {"cluster": cluster}
    values["topology"] = {
        "content": {"clusters": clusters, "links": [{"from": EAST, "to": WEST}], "pipeline": pipeline}
    }
    if cluster == EAST:
        values["driver"] = {"enabled": True, "kubernetes": {"enabled": True, "executors": 1}}
    return values


@pytest.fixture(scope="module")
def linked(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("values")
    for cluster in (WEST, EAST):
        file = directory / f"{cluster}.yaml"
        file.write_text(yaml.safe_dump(_values(cluster)))
        create = ("--create-namespace", "--namespace", cluster, "--values", file)
        kubernetes.helm("install", cluster, CHART, *create, "--wait", "--timeout", "4m")
    yield kubernetes
    for cluster in (EAST, WEST):
        kubernetes.helm("uninstall", cluster, "--namespace", cluster, "--wait")


@pytest.mark.timeout(600)  # two Spark sessions and their executors start
def test_a_link_is_carried_by_executors_that_run_as_pods(linked: Cluster) -> None:
    with traffic("public/default/by-executors", URLS) as running:
        executors = linked.until(
            lambda: [p for p in linked.pods(EAST, EXECUTOR).values() if p["status"].get("phase") == "Running"],
            "an executor",
        )
        linked.until(lambda: len(running.received[URLS[1]]) > 100, "copied messages")
    assert running.lost() == {url: [] for url in URLS}
    (driver,) = linked.pods(EAST, "app.kubernetes.io/component=driver").values()
    (owner,) = executors[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == driver["metadata"]["uid"], "executors go with their driver"
    assert executors[0]["spec"]["securityContext"]["runAsNonRoot"]


def test_executors_go_with_their_driver(linked: Cluster) -> None:
    assert linked.pods(EAST, EXECUTOR)
    path = f"/apis/apps/v1/namespaces/{EAST}/deployments/{EAST}-replicator-driver/scale"
    linked.call("PATCH", path, {"spec": {"replicas": 0}}, kind=MERGE)
    linked.until(lambda: not linked.pods(EAST, EXECUTOR), "the end of its executors")
