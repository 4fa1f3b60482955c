"""The environment of a container: its image's, that of the namespace's Services, and its own."""

from __future__ import annotations

from typing import Any

from kubelet.api import Api, Object
from kubelet.container import expand
from kubelet.volumes import NotYet, field, keys_of


def environment_of(api: Api, pod: Object, spec: Object, of_image: dict[str, str]) -> dict[str, str]:
    """Raises :class:`NotYet` where an object that it names is missing."""
    namespace: str = pod["metadata"]["namespace"]
    environment = {"HOSTNAME": pod["metadata"]["name"], **of_image, **_service_links(api, pod)}
    for source in spec.get("envFrom", ()):
        kind, of = ("configmaps", source["configMapRef"]) if "configMapRef" in source else ("secrets", source["secretRef"])
        for key, value in keys_of(api, kind, namespace, of["name"], of.get("optional")).items():
            environment[source.get("prefix", "") + key] = value.decode()
    for each in spec.get("env", ()):
        value = each.get("value", "") if "valueFrom" not in each else _referred(api, pod, each["valueFrom"])
        if value is not None:
            environment[each["name"]] = expand(value, environment)
    return environment


def _referred(api: Api, pod: Object, source: dict[str, Any]) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    for kind, name in (("configmaps", "configMapKeyRef"), ("secrets", "secretKeyRef")):
        if name in source:
            of = source[name]
            held = keys_of(api, kind, pod["metadata"]["namespace"], of["name"], of.get("optional"))
            if of["key"] not in held and not of.get("optional"):
                raise NotYet(f"{kind} {of['name']} has no {of['key']}")
            return held[of["key"]].decode() if of["key"] in held else None
    raise NotYet(f"this tool does not know where {sorted(source)} come from")


def _service_links(api: Api, pod: Object) -> dict[str, str]:
    """What Kubernetes says of Services that were there when the pod started, in variables with their names: those of
    its namespace, if it wants them, and always that of the API server."""
    links = {}
    same = [*api.of("services", pod["metadata"]["namespace"])] if pod["spec"].get("enableServiceLinks", True) else []
    for service in [*same, api.get("services", "default", "kubernetes")]:
        if service is None or service["spec"].get("clusterIP") in (None, "", "None"):
            continue
        name = service["metadata"]["name"].upper().replace("-", "_")
        address, ports = service["spec"]["clusterIP"], service["spec"]["ports"]
        links |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(ports[0]["port"])}
        links |= {f"{name}_PORT": f"tcp://{address}:{ports[0]['port']}"}
        links |= {f"{name}_SERVICE_PORT_{p['name'].upper().replace('-', '_')}": str(p["port"]) for p in ports if "name" in p}
    return links
