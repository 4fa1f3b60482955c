"""Start the node. It says ``ready`` when pods can be given to it; SIGTERM kills its pods and ends it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Final

from kubelet.api import Api, session
from kubelet.container import Image
from kubelet.pod import Pod
from kubelet.services import Forwarders, hosts_of

NODE: Final = "here"


class Node:
    """Starts the pods that the scheduler gave it, and ends those that are deleted."""

    def __init__(self, api: Api, images: dict[str, Image], directory: Path) -> None:
        self._api, self._images, self._directory = api, images, directory
        self._running: dict[str, tuple[Pod, asyncio.Task[None]]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}

    def refresh(self) -> None:
        """Do what the API server's objects say now."""
        everywhere = self._api.objects["pods"].values()
        ours = {pod["metadata"]["uid"]: pod for pod in everywhere if pod["spec"].get("nodeName") == NODE}
        for uid, found in ours.items():
            if uid not in self._running and found["status"].get("phase") == "Pending":
                pod = Pod(self._api, found, self._images, self._directory / uid)
                self._running[uid] = pod, asyncio.create_task(pod.run())
                self._running[uid][1].add_done_callback(lambda _: self._api.changed.set())
            if "deletionTimestamp" in found["metadata"]:
                self._end(uid, found["metadata"]["deletionGracePeriodSeconds"])
        for uid, (pod, task) in self._running.items():
            if uid not in ours:
                self._end(uid, 0)
            if uid not in self._ending:
                pod.refresh()
            for each in (task, self._ending.get(uid, task)):
                if each.done() and not each.cancelled():
                    each.result()  # an error of this tool ends it

    async def close(self) -> None:
        """Kill what runs."""
        for uid in self._running:
            self._end(uid, 0)
        await asyncio.gather(*self._ending.values(), return_exceptions=True)

    def _end(self, uid: str, grace_seconds: float) -> None:
        if uid in self._running and uid not in self._ending:
            pod, task = self._running[uid]
            self._ending[uid] = asyncio.create_task(pod.end(task, grace_seconds))


async def main(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    images = {name: Image(**of) for name, of in json.loads(options.images.read_text()).items()}
    async with session(options.server, os.environ["KUBELET_TOKEN"], options.authority) as opened:
        api = Api(opened)
        node, forwarders = Node(api, images, options.directory), Forwarders(api)
        print("ready", flush=True)
        waiting = asyncio.create_task(ended.wait())
        while not ended.is_set():
            api.changed.clear()
            await forwarders.refresh()
            node.refresh()
            options.hosts.write_text(hosts_of(api, ""))
            change = asyncio.create_task(api.changed.wait())
            await asyncio.wait([waiting, change], return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        await node.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="kubelet", description=f"{__doc__} KUBELET_TOKEN is shown to the server.")
    parser.add_argument("--server", required=True, help="URL of the API server")
    parser.add_argument("--authority", required=True, type=Path, help="the certificate of its authority")
    parser.add_argument("--images", required=True, type=Path, help="JSON: what stands for images whose names begin so")
    parser.add_argument("--directory", required=True, type=Path, help="for volumes and logs")
    parser.add_argument("--hosts", required=True, type=Path, help="where names of Services are written")
    asyncio.run(main(parser.parse_args()))
