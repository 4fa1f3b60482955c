"""Backups that the chart's CronJob makes, and a worker that begins with one, as pods that run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pods_support import REPOSITORY, Cluster

from replicator.backup.destination import Destination
from replicator.backup.manifest import Manifests
from replicator.client import Client, ConsumerType, InitialPosition

CHART: Final = REPOSITORY / "helm" / "replicator"
NAMESPACE: Final = "backups"
NAME: Final = "us-east-replicator"
ADDRESS: Final = f"{NAME}.{NAMESPACE}.svc:7101"
TOPIC: Final = "public/default/orders"
CLAIM: Final = "backups"


@dataclass(frozen=True)
class Region:
    """One cluster alone: what is back comes from a backup."""

    kubernetes: Cluster
    directory: Path

    def install(self, **values: Any) -> None:
        """Install or upgrade the release, and wait until the worker is ready."""
        content = {"clusters": {"us-east": {"address": ADDRESS, "insecure": True}}, "pipeline": {"engine": "embedded"}}
        backup = {"enabled": True, "existingClaim": CLAIM, "keep": 1, "schedule": "0 0 1 1 *"} | values.pop(
            "backup", {}
        )
        given = {"cluster": "us-east", "topology": {"content": content}, "backup": backup, **values}
        file = self.directory / "values.yaml"
        file.write_text(yaml.safe_dump(given))
        options = ("--namespace", NAMESPACE, "--values", file, "--wait", "--timeout", "4m")
        self.kubernetes.helm("upgrade", "--install", "us-east", CHART, *options)

    def uninstall(self) -> None:
        self.kubernetes.helm("uninstall", "us-east", "--namespace", NAMESPACE, "--wait")

    def lose_volume(self) -> None:
        self.kubernetes.call("DELETE", f"{_claims()}/data-{NAME}-0")
        self.kubernetes.until(lambda: f"data-{NAME}-0" not in self._claim_names(), "the claim is gone")

    def back_up(self, name: str) -> None:
        """Run the backup's CronJob once, as `kubectl create job --from=cronjob/…` does."""
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        cron = self.kubernetes.call("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs/{NAME}-backup")
        self.kubernetes.call("POST", jobs, {"metadata": {"name": name}, "spec": cron["spec"]["jobTemplate"]["spec"]})

        def ended() -> Any:
            conditions = self.kubernetes.jobs(NAMESPACE)[name]["status"].get("conditions", ())
            return [each["type"] for each in conditions if each["type"] in ("Complete", "Failed")]

        outcome = self.kubernetes.until(ended, f"the end of {name}")
        (pod,) = self.kubernetes.pods(NAMESPACE, f"batch.kubernetes.io/job-name={name}").values()
        assert outcome == ["Complete"], self.kubernetes.log(pod, "backup")
        self.kubernetes.call("DELETE", f"{jobs}/{name}?propagationPolicy=Foreground")

    def backups(self) -> list[str]:
        """Return the ids of the backups on the claim."""
        claim = self.kubernetes.call("GET", f"{_claims()}/{CLAIM}")
        volume = self.kubernetes.call("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return list(Manifests(Destination(volume["spec"]["hostPath"]["path"]), "us-east").ids())

    def said(self, container: str) -> str:
        return self.kubernetes.log(self.kubernetes.pod(NAMESPACE, f"{NAME}-0"), container)

    def _claim_names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.kubernetes.call("GET", _claims())["items"]}


def _claims() -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


async def _publish(*contents: bytes) -> None:
    async with Client(f"pulsar://{ADDRESS}") as client:
        producer = await client.create_producer(TOPIC)
        for content in contents:
            await producer.send(content)


async def _read(number: int, subscription: str) -> list[bytes]:
    """Read the first messages of the topic."""
    async with Client(f"pulsar://{ADDRESS}") as client:
        consumer = await client.subscribe(
            TOPIC, subscription, ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
        )
        return [(await consumer.receive(timeout_millis=30_000)).data() for _ in range(number)]


@pytest.fixture
def region(kubernetes: Cluster, tmp_path: Path) -> Iterator[Region]:
    kubernetes.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    kubernetes.call("POST", _claims(), {"metadata": {"name": CLAIM}, "spec": spec})
    alone = Region(kubernetes, tmp_path)
    yield alone
    alone.uninstall()


@pytest.mark.timeout(900)
def test_a_worker_on_an_empty_volume_begins_with_what_the_cron_job_kept(region: Region) -> None:
    region.install()
    asyncio.run(_publish(b"1"))
    region.back_up("first")
    (first,) = region.backups()
    asyncio.run(_publish(b"2", b"3"))
    region.back_up("second")
    (kept,) = region.backups()
    assert kept != first, "backup.keep is 1"

    region.uninstall()
    region.lose_volume()
    region.install(backup={"restore": {"enabled": True}})
    assert f"from backup {kept}" in region.said("restore")
    assert asyncio.run(_read(3, "after")) == [b"1", b"2", b"3"]

    asyncio.run(_publish(b"4"))
    region.install(backup={"restore": {"enabled": True}}, podAnnotations={"started": "again"})
    assert "nothing was restored" in region.said("restore")
    assert asyncio.run(_read(4, "again")) == [b"1", b"2", b"3", b"4"]
