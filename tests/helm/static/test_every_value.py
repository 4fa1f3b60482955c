"""The chart takes each of its values, treats null as unset, and refuses a value of the wrong type.

The paths of all values come from ``values.yaml``. For each of them, its schema gives another value with a text that no
other value has. The chart is rendered with a few installations that switch all features on. The text of a value must be
in every object that :data:`REACHES` names for it. A new value that no object uses fails here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from chart_references import pod_specs
from chart_support import CHART, HelmRefused, Object, merged, rendered, values_of
from chart_support import VALUES as FILES

SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
LEAVES: Final = ("texts", "objects", "resources", "probe", "pod")
"""Definitions of the schema whose mappings are values as a whole."""
PODS: Final = "every pod"
EXECUTOR: Final = "ConfigMap-executor"
OF_EVERY_POD: Final = (
    *("nodeSelector", "tolerations", "hostAliases", "dnsPolicy", "dnsConfig", "runtimeClassName"),
    *("schedulerName", "envFrom", "extraEnv", "extraVolumes", "extraVolumeMounts"),
)
HOOKS: Final = ("Job-check", "Job-migrate")

ALL: Final = "all"
"""Everything that goes together, with Spark's driver in one pod."""
EXECUTORS: Final = "executors"
"""Executors as pods, certificates that cert-manager makes."""
EXISTING: Final = "existing"
"""A topology in a ConfigMap of others."""
SECRET: Final = "secret"
"""A topology in a Secret of others."""

INSTALLATIONS: Final[Mapping[str, tuple[str, Object]]] = {
    ALL: (
        "everything",
        {
            "topology": {"content": {"pipeline": {"engine": "spark", "driver": "external"}}},
            "driver": {"enabled": True},
            "dashboards": {"enabled": True},
            "backup": {"enabled": True, "existingClaim": "backups", "restore": {"enabled": True}},
            "gateway": {"enabled": True, "parentRefs": [{"name": "outside"}]},
            "authorities": {"existingConfigMap": "company"},
            "database": {"authority": {"existingSecret": "company"}},
            "service": {
                "http": {"type": "LoadBalancer"},
                "pulsar": {"type": "LoadBalancer"},
                "links": {"enabled": True},
            },
        },
    ),
    EXECUTORS: (
        "certificates",
        {
            "driver": {"master": "", "workerUrl": "", "kubernetes": {"enabled": True}},
            "networkPolicy": {"enabled": True, "kubernetesApi": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]},
        },
    ),
    EXISTING: (
        "existing-configmap",
        {
            "driver": {"enabled": True, "kubernetes": {"enabled": True}},
            "serviceAccount": {"create": False, "driverName": "spark"},
            "gateway": {"enabled": True, "tcp": {"pulsar": [{"name": "outside"}]}},
        },
    ),
    SECRET: ("existing-secret", {"database": {"existingSecret": "database"}}),
}


class Leaf(NamedTuple):
    """One value: its path, its default in ``values.yaml``, its part of the schema, and the name of the definition that
    this part refers to. Its ``number``, which no other value has, makes the values distinct that tests set."""

    path: str
    default: Any
    schema: Mapping[str, Any]
    definition: str
    number: int

    @property
    def kind(self) -> str:
        return "enum" if "enum" in self.schema else str(self.schema.get("type", "const"))


def _leaves(values: Object, schema: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any, Any, str]]:
    for key, value in values.items():
        node = schema["properties"][key]
        definition = str(node.get("$ref", "")).rpartition("/")[2]
        node = SCHEMA["definitions"][definition] if definition else node
        if isinstance(value, dict) and "properties" in node and definition not in LEAVES and key != "content":
            yield from _leaves(value, node, f"{above}{key}.")
        else:
            yield f"{above}{key}", value, node, definition


VALUES: Final = yaml.safe_load((CHART / "values.yaml").read_text())
FOUND: Final = [Leaf(*each, 100 + number) for number, each in enumerate(_leaves(VALUES, SCHEMA))]
BY_PATH: Final = {leaf.path: leaf for leaf in FOUND}

SWITCHES: Final[Mapping[str, tuple[str, Object]]] = {
    "topology.asSecret": (ALL, {}),
    "tls.enabled": (ALL, {"tls": {"required": False}}),
    "tls.requireClientCertificates": (EXECUTORS, {}),
    "tls.certManager.enabled": (EXECUTORS, {"tls": {"existingSecret": "other"}}),
    "driver.kubernetes.enabled": (EXECUTORS, {}),
    "podMonitor.enabled": (ALL, {"serviceMonitor": {"enabled": False}}),
    "serviceAccount.create": (EXISTING, {}),
}
"""The installation in which a switch is turned, if not :data:`ALL`, and what has to be changed with it."""

REACHES: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": ("StatefulSet", "Job-check", "Job-test"),
    "nameOverride": ("StatefulSet", "Service", "Deployment-driver"),
    "fullnameOverride": ("StatefulSet", "Service", "Deployment-driver"),
    "global.imageRegistry": (PODS,),
    "global.imagePullSecrets": (PODS, EXECUTOR),
    "commonLabels": ("StatefulSet", "Service", "Service-pulsar", "Service-links", "Ingress", "PrometheusRule", PODS),
    "commonAnnotations": ("StatefulSet", "Service", "Ingress", "PrometheusRule", "ConfigMap-topology", PODS),
    "namespaceOverride": ("StatefulSet", "Service", "Ingress", "ServiceMonitor", "CronJob-drill", "ConfigMap-topology"),
    "insideAddress": ("Service-inside", "Deployment-driver", "Job-test", "CronJob-drill", "CronJob-backup"),
    "extraObjects": ("ConfigMap-v",),
    "image": (PODS,),
    "imagePullSecrets": (PODS,),
    "topology.content": ("ConfigMap-topology", "ConfigMap-next"),
    "topology.asSecret": ("ConfigMap-topology", "ConfigMap-next", "StatefulSet", "Job-check", "Job-test"),
    "topology.reloadOnChange": ("StatefulSet",),
    "topology.existingConfigMap": ("StatefulSet", "Job-check", "Job-test"),
    "topology.existingSecret": ("StatefulSet", "Job-check", "Job-test"),
    "topology.key": ("StatefulSet", "ConfigMap-topology", "ConfigMap-next", "Job-check", "Job-test", "CronJob-drill"),
    "ports": ("StatefulSet", "Job-check"),
    "ports.metrics": ("StatefulSet", "Service-metrics"),
    "ipFamilyPolicy": ("Service", "Service-headless", "Service-pulsar", "Service-links"),
    "ipFamilies": ("Service", "Service-headless", "Service-pulsar", "Service-links"),
    "service.http": ("Service",),
    "service.pulsar": ("Service-pulsar",),
    "service.links": ("Service-links",),
    "gateway": ("HTTPRoute",),
    "gateway.tcp.pulsar": ("TCPRoute-pulsar",),
    "gateway.tcp.pulsarTls": ("TCPRoute-pulsar-tls",),
    "gateway.tcp.links": ("TCPRoute-links",),
    "ingress": ("Ingress",),
    "tls": ("ConfigMap-topology", "StatefulSet"),
    "tls.keys": ("StatefulSet", "Job-check", "Job-test", "CronJob-drill", "Deployment-driver"),
    "tls.existingSecret": ("StatefulSet", "Job-check", "Job-test", "CronJob-drill", "Deployment-driver"),
    "tls.certManager": ("Certificate",),
    "authorities": (PODS, EXECUTOR),
    "auth": ("StatefulSet", "Job-check", "Job-test", "CronJob-drill", "Deployment-driver"),
    "auth.tokenKey": ("ConfigMap-topology", "Job-test", "CronJob-drill", "Deployment-driver"),
    "database": ("StatefulSet", *HOOKS),
    "checks": ("Job-check",),
    "migrations": ("Job-migrate",),
    "persistence": ("StatefulSet",),
    "scratch": (PODS,),
    "driver": ("Deployment-driver",),
    "driver.kubernetes.enabled": ("Deployment-driver", "Service-driver", "Role-driver", EXECUTOR),
    "driver.kubernetes.pod": (EXECUTOR,),
    "driver.kubernetes.driverPort": ("Deployment-driver", "Service-driver"),
    "driver.kubernetes.blockManagerPort": ("Deployment-driver", "Service-driver"),
    "serviceAccount.create": ("ServiceAccount", "ServiceAccount-driver"),
    "serviceAccount.name": ("ServiceAccount*", "StatefulSet"),
    "serviceAccount.annotations": ("ServiceAccount*",),
    "serviceAccount.driverName": ("Deployment-driver", "RoleBinding-driver"),
    "resources": ("StatefulSet",),
    "terminationGracePeriodSeconds": ("StatefulSet",),
    "watchdog": ("StatefulSet",),
    "probes": ("StatefulSet",),
    "podSecurityContext": (PODS, EXECUTOR),
    "securityContext": (PODS, EXECUTOR),
    "statefulSetAnnotations": ("StatefulSet",),
    "updateStrategy": ("StatefulSet",),
    "initContainers": ("StatefulSet",),
    "sidecars": ("StatefulSet",),
    "lifecycle": ("StatefulSet",),
    "podAnnotations": ("StatefulSet",),
    "podLabels": ("StatefulSet",),
    "affinity": ("StatefulSet",),
    "topologySpreadConstraints": ("StatefulSet",),
    "priorityClassName": ("StatefulSet",),
    **dict.fromkeys(OF_EVERY_POD, (PODS, EXECUTOR)),
    "podDisruptionBudget": ("PodDisruptionBudget",),
    "networkPolicy": ("NetworkPolicy-worker",),
    "networkPolicy.enabled": ("NetworkPolicy-worker", "NetworkPolicy-others"),
    "networkPolicy.kubernetesApi": ("NetworkPolicy-driver",),
    "networkPolicy.kubernetesApiPorts": ("NetworkPolicy-driver",),
    "networkPolicy.dns": ("NetworkPolicy-worker", "NetworkPolicy-others"),
    "networkPolicy.dnsPorts": ("NetworkPolicy-worker", "NetworkPolicy-others"),
    "networkPolicy.extraEgress": ("NetworkPolicy-worker", "NetworkPolicy-others"),
    "podMonitor": ("PodMonitor", "StatefulSet"),
    "serviceMonitor": ("ServiceMonitor",),
    "prometheusRule": ("PrometheusRule",),
    "dashboards": ("ConfigMap-dashboards",),
    "test": ("Job-test",),
    "backup": ("CronJob-backup",),
    "backup.at": ("CronJob-backup", "StatefulSet"),
    "backup.existingClaim": ("CronJob-backup", "StatefulSet"),
    "backup.restore": ("StatefulSet",),
    "drill": ("CronJob-drill",),
}
"""Objects that have the text of a value, by the longest beginning of its path."""

ELSEWHERE: Final = {
    EXECUTORS: ("driver.kubernetes.", "tls.certManager.", "image.digest", "networkPolicy.kubernetesApi"),
    EXISTING: (
        *("cluster", "fullnameOverride", "topology.existingConfigMap", "ports.", "serviceAccount.driverName"),
        *("persistence.existingClaim", "authorities.existingSecret", "gateway.tcp.pulsar"),
        *("nodeSelector", "tolerations"),  # elsewhere each pod has its own
        *("service.pulsar.type", "service.pulsar.port", "service.pulsar.nodePort"),
    ),
    SECRET: ("topology.existingSecret", "database.key"),
}
"""Values that are tried in another installation than :data:`ALL`."""

ODD: Final[Mapping[str, Any]] = {
    "gateway.hostnames": ["us-east.replicator.example"],
    "prometheusRule.rules": {"ReplicatorStoreNearlyFull": {"severity": "v7654z", "for": "7654s", "threshold": 0.7654}},
    "tls.certManager.secretTemplate": {"labels": {"k7654": "v7654z"}, "annotations": {"k7653": "v7653z"}},
    "topology.content": {"metrics": {"topics": 7654}},
    "image.digest": f"sha256:{'7' * 64}",
    "image.tag": "v7654z",
    "persistence.accessModes": ["ReadWriteOncePod"],
    "driver.workerUrl": "https://10.9.8.7:7654",
    "driver.kubernetes.master": "k8s://https://v7654z",
    "driver.kubernetes.memory": "7654m",
    "driver.kubernetes.memoryOverhead": "7653m",
    "tls.certManager.duration": "7654h",
    "tls.certManager.renewBefore": "765h",
    "insideAddress": "10.96.0.77",
    "backup.at": "/backups/v7652z",
    "backup.restore.without": ["eu-west"],
    "watchdog.endAfter": "7654s",
    "test.namespace": "public/v7654z",
    "drill.namespace": "public/v7653z",
    "ingress.hosts": ["console.us-east.example", "us-east.replicator.example"],
    "ipFamilies": ["IPv6"],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "v"}, "data": {"v7654z": ""}}],
    "networkPolicy.dnsPorts": [7654],
    # Others are chosen by these: no other type has what is given for a load balancer.
    **{f"service.{name}.type": "LoadBalancer" for name in ("http", "pulsar", "links")},
}
"""Values whose schema does not say enough."""
CONSTANT: Final = ("replicas", "podDisruptionBudget.maxUnavailable", "updateStrategy")
"""Values that allow one value only."""


def other(leaf: Leaf) -> Any:
    """Return another value than the default, with a text of its own."""
    text = f"v{leaf.number}z"
    if leaf.path in ODD:
        return ODD[leaf.path]
    match leaf.definition, leaf.kind:
        case "texts", _:
            return {f"k{leaf.number}": text}
        case "objects", _:
            return [{"name": text}]
        case "resources", _:
            return {"requests": {"cpu": f"{leaf.number}m"}, "limits": {"memory": f"{7000 + leaf.number}Mi"}}
        case "pod", _:
            return {part.path: other(part) for part in _parts_of_pod(leaf.number)}
        case "probe", _:
            return {"failureThreshold": 1100 + leaf.number}
        case "quantity", _:
            return f"{1000 + leaf.number}Mi"
        case _, "enum":
            return next(each for each in leaf.schema["enum"] if each not in ("", leaf.default))
        case _, "integer":  # Helm reads numbers of files as floats, and would write one of a million as 1e+06
            return (2_000_000 if leaf.schema.get("maximum", 3_000_000) >= 3_000_000 else 1_100) + leaf.number
        case _, "object":
            return {f"k{leaf.number}": text}
        case _, "array":
            return _others(leaf, text)
    return text


def _parts_of_pod(number: int) -> Iterator[Leaf]:
    """Yield each setting of a pod, with a text of its own."""
    for place, (name, schema) in enumerate(SCHEMA["definitions"]["pod"]["properties"].items()):
        definition = str(schema.get("$ref", "")).rpartition("/")[2]
        yield Leaf(name, None, SCHEMA["definitions"].get(definition, schema), definition, 100 * number + place)


def _others(leaf: Leaf, text: str) -> list[Any]:
    items = leaf.schema["items"]
    if items["type"] == "integer":
        return [1100 + leaf.number]
    if items["type"] == "object":
        return [{next(iter(items["properties"])): text}]
    return [f"10.{leaf.number}.0.0/16" if "/" in items.get("pattern", "") else text]


def wanted(leaf: Leaf) -> Iterator[str]:
    """Yield the texts of a value that an object must have, without the chart's own words for them."""
    value = other(leaf)
    if leaf.definition == "pod":
        value = [*value.values()]
    if leaf.path == "prometheusRule.rules":
        value = {alert: [*changes.values()] for alert, changes in value.items()}
    return texts(value)


def texts(value: Any) -> Iterator[str]:
    """Yield all keys and values as texts."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    else:
        yield str(value)


def installation_of(path: str) -> str:
    for name, beginnings in ELSEWHERE.items():
        if any(path == each or (path.startswith(each) and each.endswith((".", "Api"))) for each in beginnings):
            return name
    return ALL


def at(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


def made(folder: Path, installation: str, values: Object) -> Mapping[str, Object]:
    """Render an installation with further values. Return its objects by kind and by what follows the release's name."""
    return _made(folder, installation, json.dumps(merged(INSTALLATIONS[installation][1], values)))


@cache
def _made(folder: Path, installation: str, values: str) -> Mapping[str, Object]:
    file = folder / f"{len(list(folder.iterdir()))}.json"
    file.write_text(values)
    objects = rendered(INSTALLATIONS[installation][0], "--values", str(file))
    (own,) = [each["metadata"]["name"] for each in objects if each["kind"] == "StatefulSet"]
    return {f"{each['kind']}{_after(each, own)}": each for each in objects}


def _after(each: Object, own: str) -> str:
    name = str(each["metadata"]["name"])
    return name.removeprefix(own) if name.startswith(own) else f"-{name}"


@cache
def expected(path: str) -> tuple[str, ...]:
    beginnings = [each for each in REACHES if path == each or path.startswith(f"{each}.")]
    assert beginnings, f"{path}: which objects have it? Give it to REACHES"
    return REACHES[max(beginnings, key=len)]


def _objects(path: str, objects: Mapping[str, Object]) -> Iterator[tuple[str, str]]:
    """Yield the names of the objects that must have the value, each with its text."""
    with_pods = {id(owner) for owner, _, _ in pod_specs(list(objects.values()))}
    for name in expected(path):
        if name == PODS:
            for key, each in objects.items():
                if id(each) in with_pods and key != EXECUTOR:
                    yield key, json.dumps(each)
        elif name != EXECUTOR or name in objects:
            key = next(each for each in objects if fnmatchcase(each, name))
            yield key, json.dumps(objects[key])


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_what_is_set_is_in_every_object_that_uses_it(installation: str, folder: Path) -> None:
    chosen = [
        leaf
        for leaf in FOUND
        if leaf.path not in CONSTANT and leaf.kind != "boolean" and installation_of(leaf.path) == installation
    ]
    assert chosen
    values: Object = {}
    for leaf in chosen:
        values = merged(values, at(leaf.path, other(leaf)))
    objects = made(folder, installation, values)
    absent = [
        f"{leaf.path}: {text} is not in {name}"
        for leaf in chosen
        for name, whole in _objects(leaf.path, objects)
        for text in wanted(leaf)
        if text not in whole
    ]
    assert absent == [], "\n".join(absent)


SWITCHED: Final = [leaf for leaf in FOUND if leaf.kind == "boolean"]


@pytest.mark.parametrize("path", [leaf.path for leaf in SWITCHED])
def test_a_switch_that_is_turned_changes_every_object_that_uses_it(path: str, folder: Path) -> None:
    installation, more = SWITCHES.get(path, (ALL, {}))
    base, own = INSTALLATIONS[installation]
    is_on: Any = merged(values_of(base), own)
    for key in path.split("."):
        is_on = is_on[key]
    before = made(folder, installation, {})
    after = made(folder, installation, merged(more, at(path, not is_on)))
    assert [name for name in expected(path) if before.get(name) == after.get(name)] == []
    if path.endswith(".enabled"):  # but what is there anyway, and has a part of it
        gone = {name for name in expected(path) if (name in before) == (name in after)}
        assert gone <= {"StatefulSet", "ConfigMap-topology", "Deployment-driver"}


@pytest.mark.parametrize("installation", [ALL, EXECUTORS, EXISTING])
def test_a_null_is_a_value_that_is_not_set(installation: str, folder: Path) -> None:
    """The chart renders as if the value were left out. Values that the installation sets itself stay.

    Helm merges a mapping with its default. So each key of a mapping is set to null, which removes the key.
    """
    base, more = INSTALLATIONS[installation]
    here = merged(yaml.safe_load((FILES / f"{base}.yaml").read_text()), more)
    template = (CHART / "templates" / "_unset.tpl").read_text().splitlines()
    unset = yaml.safe_load("\n".join(line for line in template if not line.startswith("{{")))
    nulls: Object = {}
    explicit: Object = {}
    for leaf in FOUND:
        if not _has(here, leaf.path):
            nulls = merged(nulls, at(leaf.path, None))
            value = _at(unset, leaf.path)
            explicit = merged(explicit, at(leaf.path, dict.fromkeys(leaf.default) if value == {} else value))
    left, given = (made(folder, installation, values) for values in (nulls, explicit))
    assert [name for name in left.keys() | given.keys() if left.get(name) != given.get(name)] == []


def _has(values: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def _wrong(leaf: Leaf) -> Any:
    return 7 if leaf.kind in ("string", "enum") else "text"


def _wrong_inside(leaf: Leaf) -> Any:
    """Return a list or a mapping whose parts are of a wrong type; None where they may be anything."""
    if leaf.kind == "array":
        return ["text"] if leaf.schema["items"].get("type") in ("integer", "object") else [7]
    if leaf.definition == "resources":
        return {"limits": "text"}
    if leaf.definition == "pod":
        return {"affinity": "text"}
    if leaf.definition == "probe":
        return {"periodSeconds": "text"}
    return {"key": 7} if isinstance(leaf.schema.get("additionalProperties"), dict) else None


@pytest.mark.parametrize("wrong", [_wrong, _wrong_inside])
def test_a_wrong_type_is_refused_by_name(wrong: Any, folder: Path) -> None:
    """Helm names all of them at once."""
    values: Object = {}
    chosen = [leaf for leaf in FOUND if wrong(leaf) is not None]
    for leaf in chosen:
        values = merged(values, at(leaf.path, wrong(leaf)))
    file = folder / f"{wrong.__name__}.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(HelmRefused) as refused:
        rendered("minimal", "--values", str(file))
    said = str(refused.value)
    assert [leaf.path for leaf in chosen if f"at '/{leaf.path.replace('.', '/')}" not in said] == []
