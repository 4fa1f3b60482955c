"""A pretended node, which runs nothing: it reports of each pod what a kubelet would report if all went well.

Tests with Kubernetes' controllers use it: claims get bound, pods run or end, endpoints list them, deleted pods go. No
container runs and no probe is asked; ``tests/kubelet`` runs pods.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from peers.kubernetes.control_plane import ControlPlane, PeerFailed

NAME: Final = "here"
VOLUMES: Final = 40
LOOK_SECONDS: Final = 0.2
COMPONENT: Final = "app.kubernetes.io/component"
END_BY_THEMSELVES: Final = frozenset({"check", "migrate", "test", "drill", "backup"})
_MERGE: Final = "application/merge-patch+json"
_READY: Final = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


class PretendedNode:
    """Pretended node, which exists while the context lasts. Pods of a component in ``failing`` fail."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pretended node", daemon=True)
        self._addresses = 0
        self.failing: set[str] = set()

    def __enter__(self) -> PretendedNode:
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": NAME, "disk": "nvme"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": labels}}
        room = {"cpu": "64", "memory": "256Gi", "pods": "500"}
        conditions = [{"type": "Ready", "status": "True", "reason": "Pretended"}]
        self._plane.call("POST", "/api/v1/nodes", node)
        status = {"status": {"capacity": room, "allocatable": room, "conditions": conditions}}
        self._plane.call("PATCH", f"/api/v1/nodes/{NAME}/status", status, kind=_MERGE)
        # New nodes have a taint until a controller that is not run here finds them ready.
        self._plane.call("PATCH", f"/api/v1/nodes/{NAME}", {"spec": {"taints": None}}, kind=_MERGE)
        for number in range(VOLUMES):
            self._plane.call("POST", "/api/v1/persistentvolumes", _volume(number, "", "ReadWriteOnce"))
        self._plane.call("POST", "/api/v1/persistentvolumes", _volume(0, "fast", "ReadWriteOncePod"))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(PeerFailed, OSError):  # an object that has gone or changed meanwhile is looked at again
                for pod in self._plane.call("GET", "/api/v1/pods")["items"]:
                    with suppress(PeerFailed):
                        self._see_to(pod)

    def _see_to(self, pod: Any) -> None:
        meta, status = pod["metadata"], pod["status"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            self._plane.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
        elif pod["spec"].get("nodeName") == NAME and status.get("phase") == "Pending":
            component = meta.get("labels", {}).get(COMPONENT)
            self._plane.call("PATCH", f"{path}/status", {"status": self._status(pod, component)}, kind=_MERGE)

    def _status(self, pod: Any, component: str | None) -> dict[str, Any]:
        self._addresses += 1
        address = f"10.88.{self._addresses // 250}.{self._addresses % 250 + 1}"
        known = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "10.99.0.1"}
        (container,) = pod["spec"]["containers"]
        said = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        if component in END_BY_THEMSELVES:
            failed = component in self.failing
            ended = {"exitCode": int(failed), "reason": "Error" if failed else "Completed"}
            states = [{**said, "ready": False, "state": {"terminated": ended}}]
            return {**known, "phase": "Failed" if failed else "Succeeded", "containerStatuses": states}
        conditions = [{"type": kind, "status": "True"} for kind in _READY]
        states = [{**said, "ready": True, "started": True, "state": {"running": {}}}]
        return {**known, "phase": "Running", "conditions": conditions, "containerStatuses": states}


def _volume(number: int, storage_class: str, mode: str) -> dict[str, Any]:
    name = f"volume-{storage_class or 'any'}-{number}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": [mode],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/nowhere/{name}"},
        },
    }
