"""Spark with `master: k8s://…`: a driver in a Deployment asks the API server for executors, which run as pods. Workers
speak nothing but TLS, and whoever asks them must show a certificate, the executors too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from pods.secure_regions import TLS, SecureRegions
from pods.traffic import traffic
from pods_support import MERGE, Cluster

from replicator.client import AuthenticationTLS

EAST: Final = "spark-east"
WEST: Final = "spark-west"
EXECUTOR: Final = "app.kubernetes.io/component=executor"
URLS: Final = [f"pulsar+ssl://{name}-replicator.{name}.svc:7101" for name in (EAST, WEST)]
CLIENT: Final = "client"


@pytest.fixture(scope="module")
def linked(kubernetes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRegions]:
    """A one-way link that Spark carries, so one driver is enough."""
    regions = SecureRegions(kubernetes, "spark", tmp_path_factory.mktemp("secure"))
    sections = {
        "links": [{"from": EAST, "to": WEST}],
        "pipeline": {"engine": "spark", "driver": "external", "batch": "2s"},
        "auth": regions.certificate_auth(CLIENT),
    }
    driver = {"enabled": True, "kubernetes": {"enabled": True, "executors": 1}}
    for name in (WEST, EAST):
        regions.prepare(name)
        values = {"tls": {**TLS, "requireClientCertificates": True}, "driver": driver if name == EAST else {}}
        regions.upgrade(name, values, **sections)
    yield regions
    regions.uninstall()


@pytest.mark.timeout(600)  # two Spark sessions and their executors start
def test_a_link_is_carried_by_executors_that_run_as_pods(linked: SecureRegions) -> None:
    kubernetes = linked.kubernetes
    certificate, key = linked.authority.give(CLIENT, CLIENT)
    shown = AuthenticationTLS(str(certificate), str(key))
    trusted = str(linked.authority.file)
    with traffic(
        "public/default/by-executors", URLS, authentication=shown, tls_trust_certs_file_path=trusted
    ) as running:
        executors = kubernetes.until(
            lambda: [p for p in kubernetes.pods(EAST, EXECUTOR).values() if p["status"].get("phase") == "Running"],
            "an executor",
        )
        kubernetes.until(lambda: len(running.received[URLS[1]]) > 100, "copied messages")
    assert running.lost() == {url: [] for url in URLS}
    (driver,) = kubernetes.pods(EAST, "app.kubernetes.io/component=driver").values()
    (owner,) = executors[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == driver["metadata"]["uid"], "executors go with their driver"
    assert executors[0]["spec"]["securityContext"]["runAsNonRoot"]


def test_executors_go_with_their_driver(linked: SecureRegions) -> None:
    kubernetes = linked.kubernetes
    assert kubernetes.pods(EAST, EXECUTOR)
    path = f"/apis/apps/v1/namespaces/{EAST}/deployments/{EAST}-replicator-driver/scale"
    kubernetes.call("PATCH", path, {"spec": {"replicas": 0}}, kind=MERGE)
    kubernetes.until(lambda: not kubernetes.pods(EAST, EXECUTOR), "the end of its executors")
