"""Helpers of the tests with pods: the API server, a node that runs pods, and helm, in namespaces of the tests' own.

They run by ``.ci/helm``, which needs root. By hand: ``unshare --net --mount --pid --fork --mount-proc .venv/bin/python
-m pytest tests/pods``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from kubelet.__main__ import NODE
from kubelet.network import Place, add_bridge, prepare_network
from peers.kubernetes.control_plane import ControlPlane, PeerFailed, control_plane, end, keep_log, missing
from peers_required import require

REPOSITORY: Final = Path(__file__).parents[2]
NODE_SECONDS_MAX: Final = 60.0
PODS_SECONDS_MAX: Final = 240.0
"""Limit of a wait for pods; pods of this project are ready after some 10 s on an idle machine."""
VOLUMES: Final = 20
"""Number of volumes for the claims of all tests of a session; a bound volume is not given to another claim."""
MERGE: Final = "application/merge-patch+json"
_CAPACITY: Final = {"cpu": "64", "memory": "256Gi", "pods": "200", "ephemeral-storage": "1Ti"}
"""Capacity of the node, more than the machine has, so that every pod is scheduled."""
T = TypeVar("T")


def why_no_pods() -> str | None:
    """Return why pods cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "pods need root: namespaces, mounts and users of their own"
    if shutil.which("ip") is None:
        return "the program ip is not here (on Debian: iproute2)"
    if not _own_network():
        return "not in namespaces of its own: run .ci/helm, or pytest under unshare --net --mount --pid --fork"
    return missing()


def image() -> dict[str, Any]:
    """Return the stand-in for every image: this checkout's virtual environment, set up as the Dockerfiles set their
    images up."""
    environment = Path(sys.prefix)
    folders = [environment, *(REPOSITORY / room for room in ("replicator", "snapshots", "migrations"))]
    if not sys.base_prefix.startswith("/usr"):
        folders.append(Path(sys.base_prefix))
    path = {"PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    return {"folders": [str(folder) for folder in folders], "environment": path}


class Cluster:
    """A Kubernetes cluster of one node. ``directory`` has its logs; a container's are in ``node/POD-UID/NAME/log``."""

    def __init__(self, plane: ControlPlane, directory: Path, node: subprocess.Popen[bytes]) -> None:
        self.plane, self.directory, self._node = plane, directory, node
        self.call = plane.call

    def helm(self, *arguments: str | Path) -> str:
        """Run helm. If it fails, raise :class:`PeerFailed` with the state of the pods."""
        try:
            return self.plane.helm(*arguments)
        except PeerFailed as error:
            raise PeerFailed(f"{error}\n{self.described()}") from error

    def pods(self, namespace: str, selector: str = "") -> dict[str, Any]:
        """Return pods by name; ``selector`` is one of labels."""
        return self._listed(f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(selector)}")

    def pod(self, namespace: str, name: str) -> Any:
        return self.call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def jobs(self, namespace: str) -> dict[str, Any]:
        return self._listed(f"/apis/batch/v1/namespaces/{namespace}/jobs")

    def log(self, pod: Any, container: str) -> str:
        """Return the output of a container since its last start."""
        return (self.directory / "node" / pod["metadata"]["uid"] / container / "log").read_text(errors="replace")

    def volume(self, pod: Any, name: str) -> Path:
        """Return the directory of a pod's volume, which exists until the pod is removed. Volumes with a claim are
        elsewhere."""
        return self.directory / "node" / pod["metadata"]["uid"] / "volumes" / name

    def first_process(self, pod: Any, container: str) -> int:
        """Return the id, on this machine, of the process that the container started with."""
        return int((self.directory / "node" / pod["metadata"]["uid"] / container / "pid").read_text())

    def last_status(self, pod: Any, container: str) -> int:
        """Return the status with which the container ended last, even if its pod was removed."""
        return int((self.directory / "node" / pod["metadata"]["uid"] / container / "status").read_text())

    def until(self, condition: Callable[[], T], what: str, seconds: float = PODS_SECONDS_MAX) -> T:
        """Wait until a condition is true, and return its value; fail naming ``what``."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert self._node.poll() is None, f"the node ended by itself: {self.directory / 'node' / 'log'}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{self.described()}"
            time.sleep(0.1)
        return value

    def described(self) -> str:
        """Return a report on pods that are not ready and their output, on claims, events and the node's log."""
        try:
            return "\n".join(self._description())
        except (PeerFailed, OSError, LookupError) as error:  # what it is asked about is told all the same
            return f"how the pods are is not known: {error!r}"

    def _description(self) -> Iterator[str]:
        for pod in self.call("GET", "/api/v1/pods")["items"]:
            if not ready(pod) and pod["status"].get("phase") != "Succeeded":
                of = pod["metadata"]
                yield f"pod {of['namespace']}/{of['name']}: {json.dumps(pod['status'])}"
                for log in sorted((self.directory / "node" / of["uid"]).glob("*/log")):
                    yield from (f"  {log.parent.name}: {line}" for line in _last(log))
        for claim in self.call("GET", "/api/v1/persistentvolumeclaims")["items"]:
            if claim["status"].get("phase") != "Bound":
                yield f"claim {claim['metadata']['namespace']}/{claim['metadata']['name']} is not bound"
        for event in self.call("GET", "/api/v1/events")["items"][-50:]:
            of = event["involvedObject"]
            yield f"event {of.get('namespace')}/{of.get('name')}: {event.get('reason')}: {event.get('message')}"
        yield from (f"node: {line}" for line in _last(self.directory / "node" / "log"))

    def _listed(self, path: str) -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in self.call("GET", path)["items"]}


def ready(pod: Any) -> bool:
    """Return whether a pod is ready and not about to end."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def _last(log: Path, lines: int = 40) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-lines:]


@contextmanager
def cluster(directory: Path, number: int = 0) -> Iterator[Cluster]:
    """Yield the cluster, which runs while the context lasts. A second one beside the first has another ``number``."""
    place = Place(number)
    if number == 0:
        require(why_no_pods())
        prepare_network()
    add_bridge(place)
    with control_plane(directory / "plane", place.node, place.services) as plane:
        _add_node(plane, directory / "claims")
        with _node(directory / "node", plane, number) as node:
            yield Cluster(plane, directory, node)


def _add_node(plane: ControlPlane, claims: Path) -> None:
    """Make the objects that a kubelet and an administrator make: the node, a storage class, and volumes for claims."""
    plane.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}})
    ready = [{"type": "Ready", "status": "True", "reason": "Here", "message": "it runs"}]
    status = {"status": {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": ready}}
    plane.call("PATCH", f"/api/v1/nodes/{NODE}/status", status, kind=MERGE)
    # The API server taints each new node; the controller that would take that away waits for a kubelet's heartbeat.
    plane.call("PATCH", f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}}, kind=MERGE)
    named = {"name": NODE, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    storage = {"metadata": named, "provisioner": "kubernetes.io/no-provisioner"}
    plane.call("POST", "/apis/storage.k8s.io/v1/storageclasses", storage)
    for number in range(VOLUMES):
        (claims / str(number)).mkdir(parents=True)
        spec = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": NODE}
        spec |= {"persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(claims / str(number))}}
        plane.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})


@contextmanager
def _node(directory: Path, plane: ControlPlane, number: int) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir(parents=True)
    settings = {"url": plane.url, "token": plane.token, "authority": str(plane.authority), "image": image()}
    settings |= {"number": number}
    (directory / "node.json").write_text(json.dumps(settings))
    # Names of Services are known here too; the mount is this namespace's alone.
    (directory / "hosts").touch()
    subprocess.run(["mount", "--bind", directory / "hosts", "/etc/hosts"], check=True, timeout=30)
    process = subprocess.Popen(
        [sys.executable, "-m", "kubelet", str(directory)],
        cwd=REPOSITORY / "tests",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'tests'}:{REPOSITORY}"},
    )
    assert process.stdout is not None
    keep_log(process.stdout, directory / "log")
    try:
        deadline = time.monotonic() + NODE_SECONDS_MAX
        while "ready" not in (directory / "log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PeerFailed(f"the node did not start:\n{(directory / 'log').read_text()}")
            time.sleep(0.1)
        yield process
        assert process.poll() is None, f"the node ended by itself:\n{(directory / 'log').read_text()}"
    finally:
        end(process)
        subprocess.run(["umount", "/etc/hosts"], check=True, timeout=30)


def _own_network() -> bool:
    found = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, timeout=30, check=True).stdout
    return found.count("\n") == 1
