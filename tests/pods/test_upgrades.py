"""A release of an earlier chart is upgraded, and an upgrade that fails is taken back: each time with all messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
import yaml
from chart_support import ordered_chart
from peers.kubernetes.control_plane import PeerFailed
from pods_support import REPOSITORY, Cluster, ready

from replicator.client import Client, ConsumerType, InitialPosition

CHART: Final = REPOSITORY / "helm" / "replicator"
NAME: Final = "older"
STATEFUL: Final = f"/apis/apps/v1/namespaces/{NAME}/statefulsets/{NAME}-replicator"
ADDRESS: Final = f"{NAME}-replicator.{NAME}.svc:7101"
TOPIC: Final = "public/default/orders"


async def _publish(content: bytes) -> None:
    async with Client(f"pulsar://{ADDRESS}") as client:
        await (await client.create_producer(TOPIC)).send(content)


async def _read(number: int) -> list[bytes]:
    """Read the first ``number`` messages of the topic, by a new subscription."""
    async with Client(f"pulsar://{ADDRESS}") as client:
        consumer = await client.subscribe(
            TOPIC, f"reads-{number}", ConsumerType.Exclusive, initial_position=InitialPosition.Earliest
        )
        return [(await consumer.receive(timeout_millis=30_000)).data() for _ in range(number)]


@pytest.mark.timeout(900)
def test_upgrades_from_an_earlier_chart_and_back_keep_all_messages(kubernetes: Cluster, tmp_path: Path) -> None:
    """Kubernetes does not change the order of a StatefulSet's pods, so it is deleted, as docs/kubernetes.md says."""
    clusters = {NAME: {"address": ADDRESS, "insecure": True}}
    content = {"clusters": clusters, "pipeline": {"engine": "embedded"}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"cluster": NAME, "topology": {"content": content}}))

    def upgrade(chart: Path, *arguments: str) -> None:
        options = ("--namespace", NAME, "--create-namespace", "--values", tmp_path / "values.yaml", "--wait")
        kubernetes.helm("upgrade", "--install", NAME, chart, *options, *arguments)

    def worker() -> str:
        """Wait until the worker's pod is ready, and return the uid of the pod."""
        pod = kubernetes.until(lambda: kubernetes.pods(NAME).get(f"{NAME}-replicator-0"), "the worker's pod")
        kubernetes.until(lambda: ready(kubernetes.pod(NAME, f"{NAME}-replicator-0")), "the worker")
        return str(pod["metadata"]["uid"])

    upgrade(ordered_chart(tmp_path), "--timeout", "4m")
    first = worker()
    asyncio.run(_publish(b"1"))
    with pytest.raises(PeerFailed, match="--cascade=orphan"):
        upgrade(CHART)
    kubernetes.call("DELETE", f"{STATEFUL}?propagationPolicy=Orphan")
    upgrade(CHART, "--timeout", "4m", "--set", "podAnnotations.new=yes")
    second = worker()
    assert second != first
    assert kubernetes.call("GET", STATEFUL)["spec"]["podManagementPolicy"] == "Parallel"
    assert asyncio.run(_read(1)) == [b"1"]
    asyncio.run(_publish(b"2"))
    with pytest.raises(PeerFailed, match="has been rolled back due to atomic being set"):
        upgrade(CHART, "--atomic", "--timeout", "60s", "--set", "resources.requests.cpu=1000")
    assert worker() != second, "the pod that no node could take was replaced"
    assert asyncio.run(_read(2)) == [b"1", b"2"]
    kubernetes.helm("uninstall", NAME, "--namespace", NAME, "--wait")
