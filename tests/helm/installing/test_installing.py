"""Each set of values is installed, tested, upgraded, rolled back and uninstalled on Kubernetes' own API server, and
what its controllers make of it is what the chart means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from chart_installation import LISTS, Installation, eventually, is_ready
from chart_references import external
from chart_support import CHART, OF_OTHERS, RELEASE, SETS, VALUES, Object, one, rendered, values_of
from conftest import Kubernetes
from peers.kubernetes.control_plane import PeerFailed


@pytest.mark.timeout(900)
@pytest.mark.parametrize("values", SETS)
def test_a_release_goes_through_its_life(kubernetes: Kubernetes, values: str) -> None:
    release = Installation(kubernetes, values)
    meant = [each for each in rendered(values, namespace=release.namespace) if "helm.sh/hook" not in _annotations(each)]
    given = values_of(values)

    everything = rendered(values, namespace=release.namespace)
    for each in everything:
        release.check(each)
    notes = release.install().partition("NOTES:")[2]
    assert f"The worker of {given['cluster']} is" in notes
    for each in meant:
        assert each["metadata"]["name"] in release.all_of(each["kind"]), each["metadata"]["name"]
    worker = release.worker()
    _check_worker(release, worker, given)
    _check_services(release, meant, worker)
    _check_others(release, given)

    assert "Phase:          Succeeded" in release.helm("test", RELEASE, "--timeout", "3m")
    assert release.all_of("Job") == {}, "nothing of the test is left"

    before = _topology(release)
    release.upgrade("--set", "terminationGracePeriodSeconds=90", *_other_topology(given))
    replaced = release.other_worker(worker, "the pod is another one after the upgrade")
    assert replaced["spec"]["terminationGracePeriodSeconds"] == 90
    assert replaced["spec"]["volumes"][-1:] == worker["spec"]["volumes"][-1:]
    assert _claims(replaced) == _claims(worker)
    assert (_topology(release) != before) == bool(_other_topology(given))

    release.helm("rollback", RELEASE, "1")
    back = release.other_worker(replaced, "the pod is another one after the rollback")
    assert back["spec"]["terminationGracePeriodSeconds"] == worker["spec"]["terminationGracePeriodSeconds"]
    assert _topology(release) == before

    release.helm("uninstall", RELEASE)
    made = {(each["kind"], each["metadata"]["name"]) for each in meant} - external(given)
    eventually(lambda: _left(release, made) == [], "nothing of the release is left")
    kept = given["persistence"]["whenDeleted"] == "Retain"
    claim = f"data-{worker['metadata']['name']}"
    eventually(
        lambda: (claim in release.all_of("PersistentVolumeClaim")) == kept,
        "the claim stays" if kept else "the claim goes",
    )


def _check_worker(release: Installation, worker: Any, given: Mapping[str, Any]) -> None:
    claim = release.get("PersistentVolumeClaim", f"data-{worker['metadata']['name']}")
    assert claim["status"]["phase"] == "Bound"
    assert claim["spec"]["resources"]["requests"]["storage"] == given["persistence"]["size"]
    backups = {name for kind, name in external(given) if kind == "PersistentVolumeClaim" and name}
    assert set(release.all_of("PersistentVolumeClaim")) - backups == {claim["metadata"]["name"]}
    assert set(_claims(worker)) - backups == {claim["metadata"]["name"]}
    if given["backup"]["restore"]["enabled"]:
        assert [each["name"] for each in worker["spec"]["initContainers"]] == ["restore"]
    assert worker["spec"]["securityContext"]["runAsUser"] == 10001
    assert "kube-api-access" not in json.dumps(worker["spec"]["volumes"])
    if given["podDisruptionBudget"]["enabled"]:
        (budget,) = release.all_of("PodDisruptionBudget").values()
        eventually(
            lambda: release.get("PodDisruptionBudget", budget["metadata"]["name"])["status"]["disruptionsAllowed"] == 1,
            "the node of the worker can be drained",
        )


def _check_services(release: Installation, meant: list[Object], worker: Any) -> None:
    """Check that each Service leads to the worker's pod, at the container's port."""
    ports = {port["name"]: port["containerPort"] for port in worker["spec"]["containers"][0]["ports"]}
    for service in (each for each in meant if each["kind"] == "Service"):
        if service["spec"]["selector"]["app.kubernetes.io/component"] != "worker":
            continue
        expected = {
            port["name"]: (worker["status"]["podIP"], ports[port["targetPort"]]) for port in service["spec"]["ports"]
        }
        name = service["metadata"]["name"]
        eventually(partial(_leads_to, release, name, expected), f"{name} leads to {expected}")


def _check_others(release: Installation, given: Mapping[str, Any]) -> None:
    """Check the driver with its rights, and a drill."""
    if given["driver"]["enabled"]:
        (driver,) = release.all_of("Deployment")
        eventually(lambda: release.get("Deployment", driver)["status"].get("availableReplicas") == 1, "the driver runs")
    if given["driver"]["kubernetes"]["enabled"]:
        account = f"{RELEASE}-replicator-driver"
        assert release.may(account, "create", "pods")
        assert release.may(account, "deletecollection", "pods")
        assert not any(release.may(account, verb, "pods") for verb in ("update", "patch"))
        for resource in ("secrets", "configmaps", "persistentvolumeclaims", "services"):
            assert not any(release.may(account, verb, resource) for verb in ("get", "create", "delete"))
        assert not release.may(account, "create", "pods", namespace="default")
        assert not release.may(f"{RELEASE}-replicator", "list", "pods")
        eventually(lambda: len(release.addresses_of(account)) == 2, "executors find their driver")
        executor = yaml.safe_load(release.get("ConfigMap", f"{RELEASE}-replicator-executor")["data"]["executor.yaml"])
        executor["metadata"]["name"] = "executor"
        executor["spec"]["containers"][0]["image"] = "what Spark puts there"
        release.check(executor)
    for name, command in {"drill": ["drill", "--against"], "backup": ["backup", "create"]}.items():
        if given[name]["enabled"]:
            _run_now(release, name, command)


def _run_now(release: Installation, name: str, command: list[str]) -> None:
    """Run a CronJob's job once, as `kubectl create job --from=cronjob/…` does, wait until it succeeds, and delete it.

    Check that the arguments of its container begin with ``command``.
    """
    (cron,) = (each for key, each in release.all_of("CronJob").items() if key.endswith(f"-{name}"))
    template, now = cron["spec"]["jobTemplate"], f"{name}-now"
    job = {"metadata": {"name": now, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    release.kubernetes.plane.call("POST", "/" + LISTS["Job"].format(release.namespace), job)
    eventually(lambda: release.get("Job", now)["status"].get("succeeded") == 1, f"{now} has ended")
    (pod,) = (each for key, each in release.all_of("Pod").items() if key.startswith(now))
    assert pod["spec"]["containers"][0]["args"][:2] == command
    release.kubernetes.plane.call(
        "DELETE", f"/{LISTS['Job'].format(release.namespace)}/{now}", {"propagationPolicy": "Background"}
    )


@pytest.mark.timeout(600)
def test_an_upgrade_waits_for_the_migration_and_stops_where_it_fails(kubernetes: Kubernetes) -> None:
    release = Installation(kubernetes, "postgres", "migrating")
    release.install()
    worker = release.worker()
    kubernetes.node.failing.add("migrate")
    try:
        with pytest.raises(PeerFailed, match="pre-upgrade hooks failed"):
            release.upgrade(
                *("--set", "terminationGracePeriodSeconds=90", "--set", "migrations.backoffLimit=0", "--timeout", "3m")
            )
    finally:
        kubernetes.node.failing.remove("migrate")
    assert release.worker()["metadata"]["uid"] == worker["metadata"]["uid"], "the old worker runs on"
    failed = one([{**each, "kind": "Job"} for each in release.all_of("Job").values()], "Job")
    assert failed["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["db", "upgrade"]
    release.upgrade("--set", "terminationGracePeriodSeconds=90")
    assert release.all_of("Job") == {}, "a job that did its work is removed"
    assert "us-east-replicator-next" not in release.all_of("ConfigMap")
    release.helm("uninstall", RELEASE)


@pytest.mark.timeout(600)
def test_a_changed_topology_reaches_the_same_pod(kubernetes: Kubernetes) -> None:
    release = Installation(kubernetes, "minimal", "reloading")
    release.install()
    worker = release.worker()
    release.upgrade("--set", "topology.content.links[0].rate=1MiB")
    assert "1MiB" in _topology(release)
    stateful = release.get("StatefulSet", "us-east-replicator")
    eventually(
        lambda: (
            release.get("StatefulSet", "us-east-replicator")["status"]["observedGeneration"]
            == stateful["metadata"]["generation"]
        ),
        "the controller has seen the upgrade",
    )
    assert stateful["status"]["currentRevision"] == stateful["status"]["updateRevision"]
    assert release.worker()["metadata"]["uid"] == worker["metadata"]["uid"]
    release.helm("uninstall", RELEASE)


@pytest.mark.timeout(600)
def test_a_test_that_fails_is_a_failure_of_helm_test(kubernetes: Kubernetes) -> None:
    release = Installation(kubernetes, "minimal", "failing")
    release.install()
    release.worker()
    kubernetes.node.failing.add("test")
    try:
        with pytest.raises(PeerFailed, match="failed"):
            release.helm("test", RELEASE, "--timeout", "3m")
    finally:
        kubernetes.node.failing.remove("test")
    release.helm("uninstall", RELEASE)


def test_what_kubernetes_does_not_take_is_refused_by_the_server(kubernetes: Kubernetes) -> None:
    """The chart's schema lets any field of a pod through; the API server refuses what is wrong."""
    release = Installation(kubernetes, "minimal", "refused")
    ranges = 'service.pulsar={"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/99"]}'
    with pytest.raises(PeerFailed, match="loadBalancerSourceRanges"):
        release.install("--atomic", "--timeout", "2m", "--set-json", ranges)
    eventually(lambda: release.all_of("StatefulSet") == {}, "nothing of it is left")
    stateful = one(rendered("minimal", namespace="refused"), "StatefulSet")
    stateful["spec"]["template"]["spec"]["affinities"] = {}
    with pytest.raises(PeerFailed, match="affinities"):
        release.check(stateful)


_POD: Final = {
    "annotations": {"own": "yes"},
    "labels": {"team": "own"},
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"operator": "Exists"}],
    "initContainers": [{"name": "first", "image": "x"}],
    "sidecars": [{"name": "beside", "image": "x"}],
    "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
}
"""All that a pod may have of its own."""
_BALANCED: Final = {
    "type": "LoadBalancer",
    "loadBalancerIP": "203.0.113.9",
    "loadBalancerClass": "own",
    "loadBalancerSourceRanges": ["10.0.0.0/8"],
    "externalTrafficPolicy": "Local",
}
_FURTHER: Final[Object] = {
    "ipFamilyPolicy": "PreferDualStack",
    "ipFamilies": ["IPv4"],
    "insideAddress": "10.96.0.177",
    "service": {
        "http": _BALANCED | {"nodePort": 30101},
        "pulsar": _BALANCED | {"nodePort": 30102, "tlsNodePort": 30103, "clusterIP": "10.96.0.178"},
        "links": {"enabled": True, "type": "NodePort", "nodePort": 30104},
    },
    "ingress": {"hosts": [{"host": "*.us-east.example", "paths": ["/admin", "/ws"]}], "pathType": "Exact"},
    "authorities": {"existingConfigMap": "company"},
    "database": {"authority": {"existingSecret": "company"}},
    "tls": {"keys": {"certificate": "crt", "key": "key", "ca": "ca"}},
    "persistence": {
        "storageClass": "fast",
        "annotations": {"own": "yes"},
        "selector": {"matchLabels": {"disk": "fast"}},
        "dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"},
    },
    "driver": {"enabled": True, "kubernetes": {"enabled": True, "pod": _POD}, "pod": _POD},
    "networkPolicy": {"kubernetesApi": [{"ipBlock": {"cidr": "10.96.0.1/32"}}], "dnsPorts": [53, 5353]},
    "topology": {"asSecret": True, "content": {"pipeline": {"engine": "spark", "driver": "external"}}},
    "probes": {"startup": {"enabled": False}, "liveness": {"initialDelaySeconds": 5}},
    "runtimeClassName": "gvisor",
    "sidecars": [{"name": "beside", "image": "x"}],
    "initContainers": [{"name": "first", "image": "x"}],
    "extraVolumes": [{"name": "company", "configMap": {"name": "company-authorities"}}],
    "extraVolumeMounts": [{"name": "company", "mountPath": "/etc/ssl/company"}],
    "updateStrategy": "OnDelete",
    "dashboards": {"enabled": True, "folder": "Replication"},
    "checks": {"pod": _POD},
    "migrations": {"pod": _POD},
    "test": {"pod": _POD},
    "backup": {
        "enabled": True,
        "existingClaim": "backups",
        "timeZone": "Europe/Paris",
        "suspend": True,
        "ttlSecondsAfterFinished": 60,
        "pod": _POD,
        "restore": {"enabled": True, "backup": "20260101T000000Z-1", "without": ["eu-west"]},
    },
    "drill": {"timeZone": "Europe/Paris", "suspend": True, "ttlSecondsAfterFinished": 60, "pod": _POD},
    "commonAnnotations": {"own": "yes"},
    "image": {"digest": "sha256:" + "0" * 64},
}
"""Values that no set has, over those of ``everything``."""


def test_the_server_takes_what_all_further_values_make(kubernetes: Kubernetes, tmp_path: Path) -> None:
    release = Installation(kubernetes, "everything", "further")
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(_FURTHER))
    objects = rendered("everything", "--values", str(file), namespace="further")
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            release.check(each)
    runtime = {"metadata": {"name": "gvisor"}, "handler": "runsc"}
    kubernetes.plane.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    executor = yaml.safe_load(one(objects, "ConfigMap", "us-east-copies-executor")["data"]["executor.yaml"])
    executor["metadata"]["name"] = "executor"
    executor["spec"]["containers"][0]["image"] = "what Spark puts there"
    release.check(executor)


def test_two_regions_are_two_releases_in_one_namespace(kubernetes: Kubernetes) -> None:
    release = Installation(kubernetes, "minimal", "both")
    release.install()
    minimal = str(VALUES / "minimal.yaml")
    release.helm("install", "eu-west", str(CHART), "--values", minimal, "--set", "cluster=eu-west")
    found = release.all_of("StatefulSet")
    assert set(found) == {"us-east-replicator", "eu-west-replicator"}
    texts = {name: each["data"] for name, each in release.all_of("ConfigMap").items() if name.endswith("-topology")}
    assert texts["us-east-replicator-topology"] == texts["eu-west-replicator-topology"], "workers agree by its digest"
    pods = eventually(lambda: _all_ready(release, found), "both workers run")
    assert release.addresses_of("us-east-replicator")["main"][0] == pods["us-east-replicator-0"]["status"]["podIP"]
    assert release.addresses_of("eu-west-replicator")["main"][0] == pods["eu-west-replicator-0"]["status"]["podIP"]
    for name in (RELEASE, "eu-west"):
        release.helm("uninstall", name)


def _all_ready(release: Installation, stateful: Mapping[str, Any]) -> dict[str, Any] | None:
    pods = {f"{name}-0": is_ready(release.all_of("Pod").get(f"{name}-0")) for name in stateful}
    return pods if all(pods.values()) else None


def _leads_to(release: Installation, service: str, expected: Mapping[str, tuple[str, int]]) -> bool:
    return release.addresses_of(service) == expected


def _left(release: Installation, made: set[tuple[str, str]]) -> list[str]:
    """Return the names of a release's objects that still exist."""
    return [*release.all_of("Pod"), *(name for kind, name in made if name in release.all_of(kind))]


def _claims(pod: Any) -> list[str]:
    return [
        each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each
    ]


def _topology(release: Installation) -> str:
    """Return the text of the release's own topology; empty if it has none."""
    found = [{**each, "kind": kind} for kind in ("ConfigMap", "Secret") for each in release.all_of(kind).values()]
    said = [each for each in found if each["metadata"]["name"].endswith("-topology")]
    return json.dumps(said[0].get("data")) if said else ""


def _other_topology(given: Mapping[str, Any]) -> tuple[str, ...]:
    return ("--set", "topology.content.sync.snapshot_interval_ms=500") if given["topology"]["content"] else ()


def _annotations(each: Object) -> Mapping[str, str]:
    return each["metadata"].get("annotations", {})
