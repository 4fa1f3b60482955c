"""Two releases of the chart are two regions, with pods that run: drills, upgrades, kills and ends lose nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pods.traffic import traffic
from pods_support import REPOSITORY, Cluster, ready

CHART: Final = REPOSITORY / "helm" / "replicator"
EAST: Final = "us-east"
WEST: Final = "eu-west"
USER: Final = 10_001
"""The user of the chart's pods."""
DRILL_SECONDS_MAX: Final = 280.0


@dataclass(frozen=True)
class Regions:
    """A release for each region, in a namespace with the cluster's name."""

    kubernetes: Cluster
    directory: Path

    def install(self, cluster: str, values: Mapping[str, Any] | None = None) -> None:
        """Install or upgrade a region's release, and wait until the worker is ready."""
        file = self.directory / f"{cluster}.yaml"
        file.write_text(yaml.safe_dump(_values(cluster) | dict(values or {})))
        create = ("--create-namespace", "--namespace", cluster, "--values", file)
        self.kubernetes.helm("upgrade", "--install", cluster, CHART, *create, "--wait", "--timeout", "4m")

    def worker(self, cluster: str) -> Any:
        """Return the worker's pod."""
        return self.kubernetes.pod(cluster, f"{cluster}-replicator-0")

    def until_back(self, cluster: str, before: Any) -> Any:
        """Wait until the worker's pod is ready, and is another one or has a restarted container; return it."""

        def look() -> Any:
            pods = self.kubernetes.pods(cluster)
            pod = pods.get(f"{cluster}-replicator-0")
            return pod if pod is not None and ready(pod) and _life(pod) != _life(before) else None

        return self.kubernetes.until(look, f"{cluster}'s worker to be back")

    @property
    def urls(self) -> list[str]:
        return [f"pulsar://{_address(cluster)}" for cluster in (EAST, WEST)]


def _address(cluster: str) -> str:
    return f"{cluster}-replicator.{cluster}.svc:7101"


def _values(cluster: str) -> dict[str, Any]:
    clusters = {name: {"address": _address(name), "insecure": True} for name in (EAST, WEST)}
    content = {"clusters": clusters, "links": [{"between": [EAST, WEST]}], "pipeline": {"engine": "embedded"}}
    return {"cluster": cluster, "topology": {"content": content}, "drill": {"enabled": True}, "test": {"links": True}}


def _life(pod: Any) -> tuple[str, int]:
    statuses = pod["status"].get("containerStatuses") or [{"restartCount": 0}]
    return pod["metadata"]["uid"], statuses[0]["restartCount"]


@pytest.fixture(scope="module")
def regions(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    both = Regions(kubernetes, tmp_path_factory.mktemp("values"))
    for cluster in (EAST, WEST):
        both.install(cluster)
    yield both
    for cluster in (EAST, WEST):
        kubernetes.helm("uninstall", cluster, "--namespace", cluster, "--wait")


def test_a_worker_has_no_rights_and_a_root_that_nobody_writes(regions: Regions) -> None:
    """The running process has the properties that the chart's security contexts ask for."""
    process = regions.kubernetes.first_process(regions.worker(EAST), "worker")
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["Uid"].split() == [str(USER)] * 4
    assert status["Gid"].split() == [str(USER)] * 4
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    root = Path(f"/proc/{process}/mountinfo").read_text().splitlines()[0].split()
    assert root[4] == "/"
    assert "ro" in root[5].split(",")


def test_helm_test_passes(regions: Regions) -> None:
    """It publishes, copies over the link, and consumes."""
    said = regions.kubernetes.helm("test", EAST, "--namespace", EAST)
    assert "Phase:          Succeeded" in said


def test_the_cron_jobs_drill_passes_through_the_services(regions: Regions) -> None:
    """The job is made as `kubectl create job --from=cronjob/…` makes it. It runs `replicator drill --against FILE`."""
    kubernetes = regions.kubernetes
    cron = kubernetes.call("GET", f"/apis/batch/v1/namespaces/{EAST}/cronjobs/{EAST}-replicator-drill")
    job = {"metadata": {"name": "drill-now"}, "spec": cron["spec"]["jobTemplate"]["spec"]}
    kubernetes.call("POST", f"/apis/batch/v1/namespaces/{EAST}/jobs", job)

    def ended() -> Any:
        conditions = kubernetes.jobs(EAST)["drill-now"]["status"].get("conditions", ())
        return [each["type"] for each in conditions if each["type"] in ("Complete", "Failed")]

    outcome = kubernetes.until(ended, "the drill's end", DRILL_SECONDS_MAX)
    (pod,) = kubernetes.pods(EAST, "batch.kubernetes.io/job-name=drill-now").values()
    assert outcome == ["Complete"], kubernetes.log(pod, "drill")
    report = json.loads((kubernetes.volume(pod, "tmp") / "drill" / "report.json").read_text())
    assert report["passed"]
    assert report["scenario"] == "move"
    assert [report[zero] for zero in ("lost", "out_of_order", "repeated_acked_over_1s_before_kill")] == [0, 0, 0]
    assert set(report["verify"].values()) == {0}
    kubernetes.call("DELETE", f"/apis/batch/v1/namespaces/{EAST}/jobs/drill-now?propagationPolicy=Foreground")


def test_a_changed_topology_is_taken_without_a_restart(regions: Regions) -> None:
    """The chart does not roll the pods for what a worker can change under way: the files in them follow."""
    before = {cluster: _life(regions.worker(cluster)) for cluster in (EAST, WEST)}
    for cluster in (EAST, WEST):
        values = _values(cluster)
        values["topology"]["content"]["policies"] = {"message_ttl": "12h"}
        regions.install(cluster, values)
    for cluster in (EAST, WEST):
        worker = regions.worker(cluster)
        regions.kubernetes.until(
            lambda worker=worker: "topology reloaded" in regions.kubernetes.log(worker, "worker"), f"{cluster}'s reload"
        )
        assert _life(worker) == before[cluster]


def test_an_upgrade_rolls_the_workers_under_traffic_and_nothing_is_lost(regions: Regions) -> None:
    before = {cluster: regions.worker(cluster)["metadata"]["uid"] for cluster in (EAST, WEST)}
    with traffic("public/default/upgraded", regions.urls) as running:
        regions.kubernetes.until(lambda: len(running.confirmed) > 100, "traffic")
        for cluster in (EAST, WEST):
            regions.install(cluster, {"podAnnotations": {"rolled": "yes"}})
            assert regions.worker(cluster)["metadata"]["uid"] != before[cluster]
            seen = len(running.confirmed)
            regions.kubernetes.until(lambda seen=seen: len(running.confirmed) > seen + 100, "traffic goes on")
    assert running.lost() == {url: [] for url in regions.urls}


def test_the_grace_period_is_enough_for_a_worker_under_load(regions: Regions) -> None:
    """It ends by itself, with status 0, before it would be killed."""
    grace: int = regions.worker(EAST)["spec"]["terminationGracePeriodSeconds"]
    with traffic("public/default/ended", regions.urls) as running:
        regions.kubernetes.until(lambda: len(running.confirmed) > 100, "traffic")
        before = regions.worker(EAST)
        regions.kubernetes.call("DELETE", f"/api/v1/namespaces/{EAST}/pods/{EAST}-replicator-0")
        regions.until_back(EAST, before)
        assert regions.kubernetes.last_status(before, "worker") == 0, f"it was killed after {grace} s"
    assert running.lost() == {url: [] for url in regions.urls}


def test_a_killed_worker_comes_back_and_nothing_that_was_confirmed_is_lost(regions: Regions) -> None:
    """By SIGKILL, which leaves the pod; then the pod goes without any grace, and the StatefulSet makes another one."""
    with traffic("public/default/killed", regions.urls) as running:
        regions.kubernetes.until(lambda: len(running.confirmed) > 100, "traffic")
        before = regions.worker(EAST)
        os.kill(regions.kubernetes.first_process(before, "worker"), signal.SIGKILL)
        after = regions.until_back(EAST, before)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 137
        now = {"gracePeriodSeconds": 0}
        regions.kubernetes.call("DELETE", f"/api/v1/namespaces/{EAST}/pods/{EAST}-replicator-0", now)
        last = regions.until_back(EAST, after)
        assert last["metadata"]["uid"] != before["metadata"]["uid"]
        seen = len(running.confirmed)
        regions.kubernetes.until(lambda: len(running.confirmed) > seen + 100, "traffic goes on")
    assert running.lost() == {url: [] for url in regions.urls}
