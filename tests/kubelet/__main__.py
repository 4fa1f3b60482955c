"""Start the node: ``python -m kubelet --server URL --token TOKEN --authority FILE --images FILE --directory DIR``.

It says ``ready`` when the node is there. SIGTERM kills the pods and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any, Final

from kubelet.api import MERGE, Api, Refused
from kubelet.container import Image
from kubelet.network import BRIDGE, NODE_ADDRESS, Network, ip
from kubelet.pod import Pod
from kubelet.services import BALANCERS, Forwarders

NODE: Final = "here"
CLASS: Final = "local"
"""The storage class of claims that name none."""
_CAPACITY: Final = {"cpu": "64", "memory": "256Gi", "pods": "200", "ephemeral-storage": "100Gi"}
"""More than there is: what pods ask for is what they would get of a node of their own."""


async def prepare_network() -> None:
    """The bridge at which pods are; addresses of Services are the node's, where its forwarders listen."""
    await ip("link", "set", "lo", "up")
    await ip("link", "add", BRIDGE, "type", "bridge")
    await ip("address", "add", f"{NODE_ADDRESS}/16", "dev", BRIDGE)
    await ip("link", "set", BRIDGE, "up")
    for beginning in ("10.96", BALANCERS):
        await ip("route", "add", "local", f"{beginning}.0.0/16", "dev", "lo")


async def add_node(api: Api) -> None:
    """A node that takes every pod, and a storage class."""
    named: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    named["metadata"]["labels"] = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": "linux"}
    await api.call("POST", "/api/v1/nodes", named)
    ready = [{"type": "Ready", "status": "True", "reason": "Here", "message": "it runs"}]
    addresses = [{"type": "InternalIP", "address": NODE_ADDRESS}]
    status = {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": ready, "addresses": addresses}
    await api.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, MERGE)
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    await api.call(
        "POST",
        "/apis/storage.k8s.io/v1/storageclasses",
        {"metadata": {"name": CLASS, "annotations": default}, "provisioner": "replicator.tests/local"},
    )


async def provision(api: Api, directory: Path) -> None:
    """A directory for each claim; the controllers bind them."""
    for (namespace, name), claim in api.objects["claims"].items():
        if claim["spec"].get("volumeName") or claim["spec"].get("storageClassName") != CLASS:
            continue
        uid = claim["metadata"]["uid"]
        path = directory / "claims" / f"{namespace}-{name}-{uid[:8]}"
        path.mkdir(parents=True, exist_ok=True)
        spec = {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "claimRef": {"namespace": namespace, "name": name, "uid": uid},
            "hostPath": {"path": str(path)},
        }
        try:
            await api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"pv-{uid}"}, "spec": spec})
        except Refused as error:
            if error.status != 409:  # it was made already, and is being bound
                raise


class Node:
    """Starts the pods that the scheduler gave it, and ends those that are deleted."""

    def __init__(self, api: Api, images: dict[str, Image], directory: Path) -> None:
        self._api, self._images, self._directory = api, images, directory
        self._pods: dict[str, Pod] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def refresh(self) -> None:
        """Do what the API server's objects say now."""
        ours = {p["metadata"]["uid"]: p for p in self._api.objects["pods"].values() if p["spec"].get("nodeName") == NODE}
        for uid, found in ours.items():
            deleted = "deletionTimestamp" in found["metadata"]
            if uid not in self._pods and found["status"].get("phase") in (None, "Pending") and not deleted:
                self._pods[uid] = Pod(self._api, found, self._images, Network(), self._directory / uid)
                self._pods[uid].start()
            elif uid in self._pods and deleted:
                self._end(uid, found["metadata"].get("deletionGracePeriodSeconds", 30))
        for uid in self._pods.keys() - ours.keys():
            self._end(uid, 0)
        for uid, pod in self._pods.items():
            if uid not in self._ending:
                pod.refresh()

    async def close(self) -> None:
        """Kill what runs."""
        for uid in [*self._pods]:
            self._end(uid, 0)
        await asyncio.gather(*self._ending.values(), return_exceptions=True)

    def _end(self, uid: str, grace_seconds: float) -> None:
        if uid not in self._ending:
            self._ending[uid] = asyncio.create_task(self._pods[uid].end(grace_seconds))


async def run(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    images = {name: Image(**of) for name, of in json.loads(options.images.read_text()).items()}
    async with Api(options.server, options.token, options.authority) as api:
        node, forwarders = Node(api, images, options.directory), Forwarders(api)
        await add_node(api)
        print("ready", flush=True)
        waiting = asyncio.create_task(ended.wait())
        while not ended.is_set():
            api.changed.clear()
            await provision(api, options.directory)
            await forwarders.refresh()
            await node.refresh()
            change = asyncio.create_task(api.changed.wait())
            await asyncio.wait([waiting, change], return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        await node.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="kubelet", description=__doc__)
    parser.add_argument("--server", required=True)
    for name in ("authority", "images", "directory"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--token", default=os.environ.get("KUBELET_TOKEN"))
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
