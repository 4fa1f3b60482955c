"""Program of the tests' node: ``python -m kubelet DIRECTORY``.

The program prints ``ready`` when the node can run pods. SIGTERM ends the pods and the program. The file ``node.json``
in DIRECTORY has these settings:

* ``url``: the address of the API server.
* ``token``: the token that the node shows to the API server.
* ``authority``: the file with the certificate authority of the API server.
* ``number``: the number of this Kubernetes cluster among those that run side by side.
* ``image``: the stand-in for all images. It has an ``environment``, and ``folders`` of this machine beside ``/usr``.

The node writes to DIRECTORY the volumes and logs of pods, and a file ``hosts`` with the names of Services.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Final

from kubelet.api import Api, Object, session
from kubelet.pod import Pod
from kubelet.services import Forwarders, hosts_of

NODE: Final = "here"


class Node:
    """Node that runs the pods which the scheduler gave it, and ends those that are deleted."""

    def __init__(self, api: Api, settings: Object, directory: Path) -> None:
        self._api, self._settings, self._directory = api, settings, directory
        self._pods: dict[str, Pod] = {}
        self.ended = False

    def refresh(self) -> None:
        """Start, update and end pods, so that they match the API server's objects of now."""
        everywhere = self._api.objects["pods"].values()
        ours = {pod["metadata"]["uid"]: pod for pod in everywhere if pod["spec"].get("nodeName") == NODE}
        for uid, found in ours.items():
            if uid not in self._pods and found["status"].get("phase") == "Pending":
                self._pods[uid] = Pod(self._api, found, self._settings, self._directory / uid)
        for uid, pod in self._pods.items():
            if uid not in ours:
                pod.end(0)
            elif "deletionTimestamp" in ours[uid]["metadata"]:
                pod.end(ours[uid]["metadata"]["deletionGracePeriodSeconds"])
            pod.refresh()

    def end(self) -> None:
        """Have the main loop end soon."""
        self.ended = True
        self._api.changed.set()

    async def close(self) -> None:
        """Kill all pods, and wait until they have ended."""
        for pod in self._pods.values():
            pod.end(0)
        await asyncio.gather(*(pod.task for pod in self._pods.values()), return_exceptions=True)


async def main(directory: Path) -> None:
    """Run the node with the ``node.json`` of ``directory`` until SIGTERM."""
    settings = json.loads((directory / "node.json").read_text())
    async with session(settings["url"], settings["token"], settings["authority"]) as opened:
        api = Api(opened)
        node, forwarders = Node(api, settings, directory), Forwarders(api)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, node.end)
        print("ready", flush=True)
        while not node.ended:
            api.changed.clear()
            await forwarders.refresh()
            node.refresh()
            (directory / "hosts").write_text(hosts_of(api, ""))
            await api.changed.wait()
        await node.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
