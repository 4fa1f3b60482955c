"""A release of the chart on a real API server, for tests. It makes the objects that the values name, and runs helm."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from chart_references import external
from chart_support import CHART, RELEASE, VALUES, Object, values_of
from peers.kubernetes.control_plane import ControlPlane

WAIT_SECONDS_MAX: Final = 180.0
"""Limit of a wait for Kubernetes' controllers, which need a second or two on an idle machine."""
EXTERNAL_KEYS: Final = (
    *("tls.crt", "tls.key", "ca.crt", "token", "operator", "operator.token", "public.pem", "secret.key"),
    *("passwords", "uri", "url", "topology.yaml", "regions.yaml"),
)
LISTS: Final = {
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "Service": "api/v1/namespaces/{}/services",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Secret": "api/v1/namespaces/{}/secrets",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "Pod": "api/v1/namespaces/{}/pods",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "CronJob": "apis/batch/v1/namespaces/{}/cronjobs",
    "Ingress": "apis/networking.k8s.io/v1/namespaces/{}/ingresses",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Certificate": "apis/cert-manager.io/v1/namespaces/{}/certificates",
    "ServiceMonitor": "apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "EndpointSlice": "apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
    "PersistentVolumeClaim": "api/v1/namespaces/{}/persistentvolumeclaims",
}
T = TypeVar("T")


class Plane(Protocol):
    """Anything that has an API server."""

    @property
    def plane(self) -> ControlPlane: ...


class Installation:
    """A Helm release of the chart, with one file of values, in a namespace of its own.

    The constructor makes the namespace, and the objects that the values name and the chart does not make.
    """

    def __init__(self, kubernetes: Plane, values: str, namespace: str | None = None) -> None:
        self.kubernetes, self.values = kubernetes, values
        self.namespace = namespace or values
        self._call = kubernetes.plane.call
        self._call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        for kind, name in sorted(external(values_of(values))):
            if name and (kind, name) != ("ServiceAccount", "default"):
                self._make(kind, name)

    def helm(self, *arguments: str) -> str:
        return self.kubernetes.plane.helm(*arguments, "--namespace", self.namespace)

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        return self.helm("install", RELEASE, str(chart), "--values", str(VALUES / f"{self.values}.yaml"), *arguments)

    def upgrade(self, *arguments: str, chart: Path = CHART) -> str:
        return self.helm("upgrade", RELEASE, str(chart), "--values", str(VALUES / f"{self.values}.yaml"), *arguments)

    def all_of(self, kind: str) -> dict[str, Any]:
        """Return the release's objects of a kind, by name."""
        found = self._call("GET", "/" + LISTS[kind].format(self.namespace))["items"]
        return {each["metadata"]["name"]: each for each in found}

    def get(self, kind: str, name: str) -> Any:
        return self._call("GET", f"/{LISTS[kind].format(self.namespace)}/{name}")

    def check(self, each: Object) -> None:
        """Have the server look at an object as strictly as it can, without making it."""
        path = LISTS[each["kind"]].format(self.namespace)
        self._call("POST", f"/{path}?dryRun=All&fieldValidation=Strict", each)

    def worker(self) -> Any:
        """Return the worker's pod, once it is ready."""
        name = next(iter(self.all_of("StatefulSet")))
        return eventually(lambda: is_ready(self.all_of("Pod").get(f"{name}-0")), f"{name}-0 is ready")

    def worker_pod(self) -> Any:
        """Return the worker's pod as it is, ready or not."""
        (pod,) = (each for name, each in self.all_of("Pod").items() if name.endswith("-replicator-0"))
        return pod

    def other_worker(self, than: Any, what: str) -> Any:
        """Return the pod that has taken the place of another, once it is ready."""

        def other() -> Any:
            pod = is_ready(self.all_of("Pod").get(than["metadata"]["name"]))
            return pod if pod and pod["metadata"]["uid"] != than["metadata"]["uid"] else None

        return eventually(other, what)

    def addresses_of(self, service: str) -> dict[str, tuple[str, int]]:
        """Return host and port of a Service's ready endpoint, by the names of its ports."""
        slices = self._call(
            "GET",
            f"/{LISTS['EndpointSlice'].format(self.namespace)}?labelSelector="
            + quote(f"kubernetes.io/service-name={service}"),
        )["items"]
        return {
            port["name"]: (endpoint["addresses"][0], port["port"])
            for each in slices
            for endpoint in each.get("endpoints") or ()
            if endpoint["conditions"]["ready"]
            for port in each["ports"]
        }

    def may(self, account: str, verb: str, resource: str, namespace: str | None = None) -> bool:
        review = {
            "spec": {
                "user": f"system:serviceaccount:{self.namespace}:{account}",
                "resourceAttributes": {"verb": verb, "resource": resource, "namespace": namespace or self.namespace},
            }
        }
        return bool(
            self._call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"]
        )

    def _make(self, kind: str, name: str) -> None:
        field = {"Secret": "stringData", "ConfigMap": "data"}.get(kind)
        data = {} if field is None else {field: dict.fromkeys(EXTERNAL_KEYS, "x")}
        if kind == "PersistentVolumeClaim":
            data = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
        self._call("POST", "/" + LISTS[kind].format(self.namespace), {"metadata": {"name": name}, **data})


def eventually(condition: Callable[[], T], what: str) -> T:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS_MAX:.0f} s: {what}"
        time.sleep(0.2)
    return value


def is_ready(pod: Any) -> Any:
    conditions = {each["type"]: each["status"] for each in (pod or {}).get("status", {}).get("conditions", ())}
    return pod if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"] else None
