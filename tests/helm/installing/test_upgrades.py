"""Upgrades that would break a release are refused before anything is changed; those that broke can be taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from chart_installation import LISTS, Installation, eventually
from chart_support import RELEASE, ordered_chart, recorded_chart
from conftest import Kubernetes
from peers.kubernetes.control_plane import PeerFailed

NAME: Final = f"{RELEASE}-replicator"
MERGE: Final = "application/merge-patch+json"


@pytest.fixture(scope="module")
def release(kubernetes: Kubernetes) -> Iterator[Installation]:
    made = Installation(kubernetes, "minimal", "upgrading")
    made.install()
    made.worker()
    yield made
    made.helm("uninstall", RELEASE)


def _state(release: Installation) -> list[tuple[str, str, Any]]:
    """Return the objects that an upgrade would change, with the versions that the server counts."""
    kinds = ("StatefulSet", "Service", "ConfigMap", "ServiceAccount", "PersistentVolumeClaim", "Job")
    return [
        (kind, name, each["metadata"]["resourceVersion"] if kind not in ("StatefulSet", "PersistentVolumeClaim")
         else each["spec"])
        for kind in kinds for name, each in release.all_of(kind).items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            "cluster=eu-west",
            'cluster: release us-east runs the StatefulSet us-east-replicator, the worker of "us-east"',
        ),
        ("nameOverride=copies", "nameOverride, fullnameOverride: release us-east runs"),
        ("fullnameOverride=copies", "nameOverride, fullnameOverride: release us-east runs"),
        (f"fullnameOverride={NAME},nameOverride=copies", "nameOverride, fullnameOverride: release us-east runs"),
        ("persistence.size=100Gi", "persistence.size (50Gi, and now 100Gi)"),
        ("persistence.storageClass=fast", 'persistence.storageClass ("", and now "fast")'),
        ("persistence.accessModes[0]=ReadWriteOncePod", "has made: persistence.accessModes ("),
        ("persistence.annotations.owner=me", "has made: persistence.annotations"),
        ("persistence.selector.matchLabels.disk=fast", "has made: persistence.selector"),
        (
            "persistence.dataSource.kind=VolumeSnapshot,persistence.dataSource.name=s",
            "has made: persistence.dataSource",
        ),
        ("persistence.existingClaim=kept", "persistence.existingClaim: release us-east runs"),
        (
            "namespaceOverride=elsewhere",
            "namespaceOverride: release us-east runs the StatefulSet us-east-replicator in",
        ),
    ],
)
def test_a_change_that_cannot_be_applied_is_refused_before_anything_is_changed(
    release: Installation, values: str, said: str
) -> None:
    before, uid = _state(release), release.worker()["metadata"]["uid"]
    with pytest.raises(PeerFailed, match=re.escape(said)):
        release.upgrade("--set", values)
    assert _state(release) == before
    assert release.worker()["metadata"]["uid"] == uid


def test_the_same_size_in_other_words_is_no_change(release: Installation) -> None:
    release.upgrade("--set", "persistence.size=51200Mi")
    assert release.get("StatefulSet", NAME)["spec"]["podManagementPolicy"] == "Parallel"


def test_what_a_claim_was_made_with_is_no_change_and_a_claim_of_others_is_not_taken_back(
    kubernetes: Kubernetes,
) -> None:
    release = Installation(kubernetes, "minimal", "claims")
    source = '{"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}'
    given = ("--set-json", f"persistence.dataSource={source}", "--set", "persistence.selector.matchLabels.disk=fast")
    release.install(*given)
    release.upgrade(*given, "--set", "podAnnotations.changed=yes")
    with pytest.raises(PeerFailed, match=r"persistence\.selector, persistence\.dataSource"):
        release.upgrade()
    release.helm("uninstall", RELEASE)
    release.install("--set", "persistence.existingClaim=kept")
    volumes = release.get("StatefulSet", NAME)["spec"]["template"]["spec"]["volumes"]
    (volume,) = [each for each in volumes if each["name"] == "data"]
    assert volume["persistentVolumeClaim"] == {"claimName": "kept"}
    with pytest.raises(PeerFailed, match=r"persistence\.existingClaim: .* with a claim that was there before"):
        release.upgrade()
    release.helm("uninstall", RELEASE)


def test_addresses_and_classes_that_a_service_keeps_are_refused_before_anything_is_changed(
    kubernetes: Kubernetes,
) -> None:
    release = Installation(kubernetes, "minimal", "services")
    balanced = ("--set", "service.links.enabled=true,service.links.loadBalancerClass=own,ipFamilies={IPv4}")
    release.install("--set", "insideAddress=10.96.0.77,service.pulsar.clusterIP=10.96.0.78", *balanced)
    release.worker()
    before = _state(release)
    for values, said in {
        "insideAddress=10.96.0.88": 'insideAddress ("10.96.0.77", and now "10.96.0.88")',
        "service.pulsar.clusterIP=10.96.0.89": 'service.pulsar.clusterIP ("10.96.0.78", and now "10.96.0.89")',
        "service.http.clusterIP=10.96.0.90": "service.http.clusterIP",
        "service.links.loadBalancerClass=other": 'service.links.loadBalancerClass ("own", and now "other")',
        "service.links.loadBalancerClass=": 'service.links.loadBalancerClass ("own", and now "")',
        "ipFamilies={IPv6}": 'ipFamilies ("IPv4", and now "IPv6")',
    }.items():
        with pytest.raises(PeerFailed, match=re.escape(said)):
            release.upgrade("--set", "insideAddress=10.96.0.77", *balanced, "--set", values)
        assert _state(release) == before, values
    # What Kubernetes keeps by itself, or may change, is none.
    release.upgrade("--set", "service.links.enabled=true,service.links.type=ClusterIP")
    assert release.get("Service", f"{NAME}-pulsar")["spec"]["clusterIP"] == "10.96.0.78"
    release.helm("uninstall", RELEASE)


def _forget(release: Installation) -> None:
    """Run ``kubectl delete statefulset … --cascade=orphan``, as the refusals advise."""
    path = f"/{LISTS['StatefulSet'].format(release.namespace)}/{NAME}"
    release.kubernetes.plane.call("DELETE", path, {"propagationPolicy": "Orphan"})
    eventually(lambda: NAME not in release.all_of("StatefulSet"), "the StatefulSet is gone")


def test_a_claim_that_was_changed_itself_stays_in_use(kubernetes: Kubernetes) -> None:
    """The way that the refusal and docs/kubernetes.md show, with annotations: no volume of this test can grow."""
    release = Installation(kubernetes, "minimal", "growing")
    release.install()
    worker = release.worker()
    (claim,) = release.all_of("PersistentVolumeClaim")
    path = f"/{LISTS['PersistentVolumeClaim'].format(release.namespace)}/{claim}"
    kubernetes.plane.call("PATCH", path, {"metadata": {"annotations": {"owner": "me"}}}, kind=MERGE)
    _forget(release)
    assert release.worker_pod()["metadata"]["uid"] == worker["metadata"]["uid"], "the pod runs on meanwhile"
    release.upgrade("--set", "persistence.annotations.owner=me")
    claims = release.get("StatefulSet", NAME)["spec"]["volumeClaimTemplates"]
    assert claims[0]["metadata"]["annotations"] == {"owner": "me"}
    release.worker()
    assert list(release.all_of("PersistentVolumeClaim")) == [claim]
    release.helm("uninstall", RELEASE)


def test_a_release_of_the_chart_before_is_taken_over_with_its_volume(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """Its StatefulSet names no cluster, and starts pods in order, which Kubernetes does not change."""
    release = Installation(kubernetes, "minimal", "older")
    release.install(chart=ordered_chart(tmp_path))
    assert "replicator/cluster" not in release.get("StatefulSet", NAME)["metadata"]["annotations"]
    worker = release.worker()
    (claim,) = release.all_of("PersistentVolumeClaim").values()
    with pytest.raises(PeerFailed, match='the worker of "us-east", and by these values it is the worker of "eu-west"'):
        release.upgrade("--set", "cluster=eu-west")
    with pytest.raises(PeerFailed, match=f"delete statefulset {NAME} --cascade=orphan"):
        release.upgrade()
    assert release.worker()["metadata"]["uid"] == worker["metadata"]["uid"]
    _forget(release)
    release.upgrade("--set", "podAnnotations.new=yes")
    release.other_worker(worker, "the pod of the chart before is replaced")
    (kept,) = release.all_of("PersistentVolumeClaim").values()
    assert kept["metadata"]["uid"] == claim["metadata"]["uid"]
    release.helm("uninstall", RELEASE)


@pytest.mark.parametrize("values", ["minimal", "secure", "spark-kubernetes"])
def test_a_release_of_the_recorded_chart_is_upgraded_and_rolled_back_on_its_volume(
    kubernetes: Kubernetes, tmp_path: Path, values: str
) -> None:
    release = Installation(kubernetes, values, f"recorded-{values}")
    release.install(chart=recorded_chart(tmp_path))
    worker = release.worker()
    (claim,) = release.all_of("PersistentVolumeClaim").values()
    release.upgrade("--set", "podAnnotations.new=yes")
    replaced = release.other_worker(worker, "the pod of the recorded chart is replaced")
    release.helm("rollback", RELEASE, "1")
    release.other_worker(replaced, "the pod of the recorded chart is back")
    (kept,) = release.all_of("PersistentVolumeClaim").values()
    assert kept["metadata"]["uid"] == claim["metadata"]["uid"]
    release.helm("uninstall", RELEASE)


@pytest.mark.parametrize("back", ["rollback", "upgrade"])
def test_an_upgrade_that_never_gets_ready_is_mended_by_helm_alone(kubernetes: Kubernetes, back: str) -> None:
    """Its pod finds no node; the checks before it are left out, for they would find none either."""
    release = Installation(kubernetes, "minimal", f"broken-{back}")
    release.install()
    worker = release.worker()
    release.upgrade("--no-hooks", "--set", "nodeSelector.disk=none")

    def stuck() -> bool:
        pod = release.all_of("Pod").get(f"{NAME}-0")
        return pod is not None and pod["metadata"]["uid"] != worker["metadata"]["uid"] and "nodeName" not in pod["spec"]

    eventually(stuck, "the new pod waits for a node")
    if back == "rollback":
        release.helm("rollback", RELEASE, "1")
    else:
        release.upgrade("--set", "podAnnotations.corrected=yes")
    release.worker()
    release.helm("uninstall", RELEASE)


def test_a_check_that_fails_changes_nothing_and_no_release_is_installed_by_it(kubernetes: Kubernetes) -> None:
    release = Installation(kubernetes, "minimal", "checked")
    release.install()
    worker, text = release.worker(), release.get("ConfigMap", f"{NAME}-topology")["data"]
    kubernetes.node.failing.add("check")
    try:
        with pytest.raises(PeerFailed, match="pre-upgrade hooks failed"):
            release.upgrade("--set", "topology.content.links[0].rate=1MiB", "--timeout", "3m")
    finally:
        kubernetes.node.failing.remove("check")
    assert release.get("ConfigMap", f"{NAME}-topology")["data"] == text
    assert release.worker()["metadata"]["uid"] == worker["metadata"]["uid"]
    assert list(release.all_of("Job")) == [f"{NAME}-check"], "the job that failed is there to be read"
    release.upgrade("--set", "topology.content.links[0].rate=1MiB")
    assert release.all_of("Job") == {}
    assert f"{NAME}-hooks" not in release.all_of("ServiceAccount")
    release.helm("uninstall", RELEASE)
