"""Check of a release's references: each leads to an object of the release or to one that the values name.

Each ``_of_…`` function yields what is missing, in words. *External* names are those that the values say to exist
already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

Object = dict[str, Any]

HOOK: Final = "helm.sh/hook"
IN_PODS: Final = re.compile(r"/etc/replicator/[\w./-]+")


def missing(objects: Sequence[Object], values: Mapping[str, Any]) -> list[str]:
    """Return every reference whose object is neither in the release nor external."""
    return sorted(set(_Release(objects, values).missing()))


def pod_specs(objects: Sequence[Object]) -> Iterator[tuple[Object, Object, Mapping[str, str]]]:
    """Yield each object that makes pods, the pods' specification, and their labels."""
    for each in objects:
        match each["kind"]:
            case "Pod":
                yield each, each["spec"], each["metadata"].get("labels", {})
            case "StatefulSet" | "Deployment" | "Job":
                template = each["spec"]["template"]
                yield each, template["spec"], template["metadata"]["labels"]
            case "CronJob":
                template = each["spec"]["jobTemplate"]["spec"]["template"]
                yield each, template["spec"], template["metadata"]["labels"]
            case "ConfigMap" if "executor.yaml" in each["data"]:
                pod = yaml.safe_load(each["data"]["executor.yaml"])
                yield each, pod["spec"], pod["metadata"]["labels"]


def external(values: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return kind and name of each object that the values say to exist already."""
    found = {
        ("ConfigMap", values["topology"]["existingConfigMap"]),
        ("Secret", values["topology"]["existingSecret"]),
        ("Secret", values["tls"]["existingSecret"]),
        ("Secret", values["auth"]["existingSecret"]),
        ("Secret", values["database"]["existingSecret"]),
        ("Secret", values["database"]["authority"]["existingSecret"]),
        ("Secret", values["authorities"]["existingSecret"]),
        ("ConfigMap", values["authorities"]["existingConfigMap"]),
        ("PersistentVolumeClaim", values["backup"]["existingClaim"]),
        ("PersistentVolumeClaim", values["persistence"]["existingClaim"]),
        ("Secret", values["serviceMonitor"]["tokenSecret"]["name"]),
        ("ServiceAccount", "default"),
    }
    if not values["serviceAccount"]["create"]:
        found |= {("ServiceAccount", values["serviceAccount"][key]) for key in ("name", "driverName")}
    found |= {("Secret", each["name"]) for each in values["imagePullSecrets"] + values["global"]["imagePullSecrets"]}
    found |= {("Secret", each["secretName"]) for each in values["ingress"]["tls"]}
    found |= {
        (kind, name)
        for each in values["extraVolumes"]
        for source, kind, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"))
        if (name := each.get(source, {}).get(key))
    }
    return found


class _Release:
    def __init__(self, objects: Sequence[Object], values: Mapping[str, Any]) -> None:
        self._objects = objects
        self._external = external(values)
        self._pods = list(pod_specs(objects))

    def missing(self) -> Iterator[str]:
        for each, spec, _labels in self._pods:
            for what in self._of_pod_spec(each, spec):
                yield f"{each['kind']} {each['metadata']['name']}: {what}"
        for each in self._objects:
            check = getattr(self, f"_of_{each['kind'].lower()}", None)
            if check is not None:
                for what in check(each):
                    yield f"{each['kind']} {each['metadata']['name']}: {what}"

    def _of_pod_spec(self, owner: Object, spec: Object) -> Iterator[str]:
        hook = _annotations(owner).get(HOOK, "").startswith("pre-")  # others run beside the release
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        volumes |= (
            {claim["metadata"]["name"]: claim for claim in owner["spec"].get("volumeClaimTemplates", ())}
            if (owner["kind"] == "StatefulSet")
            else {}
        )
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                yield from self._wanted("ConfigMap", volume["configMap"]["name"], volume["configMap"], hook)
            if "secret" in volume:
                yield from self._wanted("Secret", volume["secret"]["secretName"], volume["secret"], hook)
            if "persistentVolumeClaim" in volume:
                yield from self._wanted("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], {}, hook)
        yield from self._wanted("ServiceAccount", spec.get("serviceAccountName", "default"), {}, hook)
        for secret in spec.get("imagePullSecrets", ()):
            yield from self._wanted("Secret", secret["name"], {}, hook)
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        for container in containers:
            yield from self._of_container(container, volumes)
        mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts", ())}
        yield from (f"has a volume {name} that nothing mounts" for name in set(volumes) - mounted)

    def _of_container(self, container: Object, volumes: Mapping[str, Object]) -> Iterator[str]:
        mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
        yield from (f"mounts a volume {name}" for name in mounts.values() if name not in volumes)
        ports = {port["name"] for port in container.get("ports", ())}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container.get(kind, {}).get("httpGet", {}).get("port")
            if port is not None and port not in ports:
                yield f"{kind} asks a port {port}"
        said = [*container.get("args", ()), *(str(variable.get("value", "")) for variable in container.get("env", ()))]
        places = {place for text in said for place in IN_PODS.findall(text)}
        topology = mounts.get("/etc/replicator/topology")
        if topology is not None and topology in volumes:
            content = self._content(volumes[topology])
            # Every pod reads the topology; what files of it are needed depends on what it does there.
            if content is not None and "worker" in container.get("args", ())[:1]:
                places |= set(IN_PODS.findall(content))
        for place in sorted(places):
            yield from self._of_place(place, mounts, volumes)

    def _of_place(self, place: str, mounts: Mapping[str, str], volumes: Mapping[str, Object]) -> Iterator[str]:
        folder, _, name = place.rpartition("/")
        if place in mounts:
            return
        if folder not in mounts:
            yield f"names {place}, and nothing is mounted there"
            return
        volume = volumes[mounts[folder]]
        source = volume.get("secret") or volume.get("configMap") or {}
        if "items" in source and name not in [item["path"] for item in source["items"]]:
            yield f"names {place}, which is not among the items of its volume"
        keys = self._keys(volume)
        if keys is not None and name not in keys:
            yield f"names {place}, and its volume has {', '.join(sorted(keys))}"

    def _object(self, kind: str, name: str) -> Object | None:
        for each in self._objects:
            if (each["kind"], each["metadata"]["name"]) == (kind, name):
                return each
        return None

    def _source(self, volume: Object) -> Object | None:
        if "configMap" in volume:
            return self._object("ConfigMap", volume["configMap"]["name"])
        return self._object("Secret", volume["secret"]["secretName"]) if "secret" in volume else None

    def _keys(self, volume: Object) -> set[str] | None:
        source = self._source(volume)
        return None if source is None else {*source.get("data", {}), *source.get("stringData", {})}

    def _content(self, volume: Object) -> str | None:
        source = self._source(volume)
        return None if source is None else "\n".join((source.get("data") or source["stringData"]).values())

    def _wanted(self, kind: str, name: str, source: Mapping[str, Any], hook: bool) -> Iterator[str]:
        """``hook``: of a job before an upgrade, when what the release makes is not there yet, or is the old one."""
        install = any(HOOK in _annotations(each) for each in self._objects if each["kind"] == "ServiceAccount")
        found = self._object(kind, name)
        made = kind == "Secret" and any(
            each["kind"] == "Certificate" and each["spec"]["secretName"] == name for each in self._objects
        )
        if (kind, name) in self._external:
            return
        if found is None and not made:
            yield f"wants the {kind} {name}"
        elif kind == "ServiceAccount" and not install:
            pass  # it is there before an upgrade
        elif hook and not source.get("optional") and (found is None or HOOK not in _annotations(found)):
            yield f"wants the {kind} {name}, which is no hook: it is not there, or the old one, before an upgrade"
        elif found is not None:
            keys = {*found.get("data", {}), *found.get("stringData", {})}
            yield from (
                f"wants the key {item['key']} of the {kind} {name}"
                for item in source.get("items", ())
                if item["key"] not in keys
            )

    # Objects that select pods, or name others.

    def _selected(self, labels: Mapping[str, str], expressions: Sequence[Object] = ()) -> list[Object]:
        """Return the specifications of the pods that have the labels."""
        return [
            spec
            for _, spec, has in self._pods
            if labels.items() <= has.items() and all(has.get(each["key"]) in each["values"] for each in expressions)
        ]

    def _of_service(self, service: Object) -> Iterator[str]:
        specs = self._selected(service["spec"]["selector"])
        if not specs:
            yield "selects no pod"
        for port in service["spec"]["ports"]:
            if not any(port["targetPort"] in _ports(spec) for spec in specs):
                yield f"leads to a port {port['targetPort']} that its pods do not have"

    def _of_statefulset(self, owner: Object) -> Iterator[str]:
        service = self._object("Service", owner["spec"]["serviceName"])
        if service is None or service["spec"].get("clusterIP") != "None":
            yield f"wants the headless Service {owner['spec']['serviceName']}"
        yield from self._selects_itself(owner)

    def _of_deployment(self, owner: Object) -> Iterator[str]:
        yield from self._selects_itself(owner)

    def _selects_itself(self, owner: Object) -> Iterator[str]:
        labels = owner["spec"]["selector"]["matchLabels"]
        if len(self._selected(labels)) != 1:
            yield f"selects {len(self._selected(labels))} kinds of pods"

    def _of_poddisruptionbudget(self, budget: Object) -> Iterator[str]:
        if len(self._selected(budget["spec"]["selector"]["matchLabels"])) != 1:
            yield "selects not exactly the worker"

    def _of_networkpolicy(self, policy: Object) -> Iterator[str]:
        selector = policy["spec"]["podSelector"]
        specs = self._selected(selector["matchLabels"], selector.get("matchExpressions", ()))
        if not specs:
            yield "selects no pod"
        for rule in policy["spec"].get("ingress", ()):
            for port in rule.get("ports", ()):
                if isinstance(port["port"], str) and not any(port["port"] in _ports(spec) for spec in specs):
                    yield f"lets in at a port {port['port']} that its pods do not have"

    def _of_ingress(self, ingress: Object) -> Iterator[str]:
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                service = self._object("Service", backend["name"])
                ports = [] if service is None else [each["name"] for each in service["spec"]["ports"]]
                if backend["port"]["name"] not in ports:
                    yield f"wants the port {backend['port']['name']} of the Service {backend['name']}"
        for tls in ingress["spec"].get("tls", ()):
            yield from self._wanted("Secret", tls["secretName"], {}, hook=False)

    def _of_route(self, route: Object) -> Iterator[str]:
        for backend in (each for rule in route["spec"]["rules"] for each in rule["backendRefs"]):
            service = self._object("Service", backend["name"])
            if service is None or backend["port"] not in [each["port"] for each in service["spec"]["ports"]]:
                yield f"wants the port {backend['port']} of the Service {backend['name']}"

    _of_httproute = _of_tlsroute = _of_tcproute = _of_route

    def _of_rolebinding(self, binding: Object) -> Iterator[str]:
        yield from self._wanted(binding["roleRef"]["kind"], binding["roleRef"]["name"], {}, hook=False)
        for subject in binding["subjects"]:
            yield from self._wanted(subject["kind"], subject["name"], {}, hook=False)

    def _of_servicemonitor(self, monitor: Object) -> Iterator[str]:
        labels = monitor["spec"]["selector"]["matchLabels"]
        services = [
            each
            for each in self._objects
            if each["kind"] == "Service" and labels.items() <= each["metadata"]["labels"].items()
        ]
        if len(services) != 1:
            yield f"selects {len(services)} Services"
        for endpoint in monitor["spec"]["endpoints"]:
            if not any(endpoint["port"] in [port["name"] for port in each["spec"]["ports"]] for each in services):
                yield f"asks a port {endpoint['port']}"
            tls = endpoint.get("tlsConfig", {})
            for secret in (tls.get("ca", {}).get("secret"), tls.get("cert", {}).get("secret"), tls.get("keySecret")):
                if secret is not None:
                    yield from self._wanted("Secret", secret["name"], {}, hook=False)
            if "authorization" in endpoint:
                yield from self._wanted("Secret", endpoint["authorization"]["credentials"]["name"], {}, hook=False)


def _annotations(each: Object) -> Mapping[str, str]:
    return each["metadata"].get("annotations", {})


def _ports(spec: Object) -> set[str]:
    return {port["name"] for container in spec["containers"] for port in container.get("ports", ())}
