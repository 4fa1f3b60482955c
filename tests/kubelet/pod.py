"""One pod: its containers from start to end, and its status."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kubelet.api import MERGE_LISTS, Api, Object, Refused
from kubelet.container import Container, Image, expand
from kubelet.network import NODE_ADDRESS, Network
from kubelet.probes import Probes
from kubelet.services import hosts_of
from kubelet.volumes import NotYet, Volumes, field, keys_of

BACK_OFF_SECONDS: Final = (0.5, 10.0)
"""Before a container is started again: at first and at most. A kubelet waits for 10 s at first."""


class Pod:
    """``run`` it in a task; ``end`` it when it is deleted."""

    def __init__(self, api: Api, pod: Object, images: dict[str, Image], directory: Path) -> None:
        self._api, self._object, self._directory, self._images = api, pod, directory, images
        self._network = Network()
        self._names = directory / "names"
        self._volumes = Volumes(api, pod, directory / "volumes")
        of_pod = (directory, self._network.name, self._names)
        self._containers = [Container(pod, spec, *of_pod) for spec in pod["spec"]["containers"]]
        self._probes: dict[str, Probes] = {}
        """Those of containers that run, by name."""
        self._phase, self._since = "Pending", _now()
        self._ending = False
        self._reporting = asyncio.Lock()

    async def run(self) -> None:
        """Until its containers have ended for good."""
        await self._network.add()
        self.refresh()
        policy = self._object["spec"].get("restartPolicy", "Always")
        statuses = await asyncio.gather(*(self._keep(each, policy) for each in self._containers))
        self._phase = "Failed" if any(statuses) else "Succeeded"
        await self._report()

    def refresh(self) -> None:
        """Bring its files up to date with the objects that they come from."""
        self._volumes.refresh()
        text = hosts_of(self._api, self._object["metadata"]["namespace"])
        text += f"{self._network.address} {self._object['metadata']['name']}\n"
        self._names.mkdir(parents=True, exist_ok=True)
        (self._names / "new").write_text(text)
        (self._names / "new").replace(self._names / "hosts")

    async def end(self, running: asyncio.Task[None], grace_seconds: float) -> None:
        """Stop what runs, say so, and let the API server forget the pod."""
        self._ending = True
        await self._report()  # it is not ready any more
        await asyncio.gather(*(each.stop(grace_seconds) for each in self._containers))
        await asyncio.wait([running], timeout=5)
        running.cancel()
        await asyncio.gather(*(each.stop(0) for each in self._containers))  # one that was just started
        await self._network.remove()
        shutil.rmtree(self._directory / "volumes", ignore_errors=True)
        uid = self._object["metadata"]["uid"]
        await self._tell("DELETE", "", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    async def _keep(self, each: Container, policy: str) -> int:
        """Run a container again and again, as the policy says; its last status."""
        pause = BACK_OFF_SECONDS[0]
        while True:
            status = await self._run_once(each)
            if self._ending or policy == "Never" or (policy == "OnFailure" and status == 0):
                return status
            each.last, each.restarts = each.state, each.restarts + 1
            await self._wait(each, "CrashLoopBackOff", f"it ended with status {status}", pause)
            pause = min(pause * 2, BACK_OFF_SECONDS[1])
            if self._ending:
                return status

    async def _run_once(self, each: Container) -> int:
        await self._start(each)
        probes = self._probes[each.name] = Probes(each, self._network.address, self._report)
        started = _now()
        each.state, self._phase = {"running": {"startedAt": started}}, "Running"
        await self._report()
        probing = asyncio.create_task(self._stop_when_it_fails(each, probes))
        status = await each.ended()
        probing.cancel()
        del self._probes[each.name]
        ended = {"exitCode": status, "startedAt": started, "finishedAt": _now()}
        each.state = {"terminated": {**ended, "reason": "Error" if status else "Completed"}}
        await self._report()
        return status

    async def _start(self, each: Container) -> None:
        while True:
            try:
                await self._volumes.prepare()
                spec, image = each.spec, self._image(each.spec["image"])
                paths = self._volumes.paths
                mounts = [
                    (paths[m["name"]], m["mountPath"], m.get("readOnly", False)) for m in spec.get("volumeMounts", ())
                ]
                return await each.start(image, dict(self._environment(spec, image)), mounts)
            except (NotYet, Refused) as error:
                await self._wait(each, "ContainerCreating", str(error), 0.3)

    def _image(self, name: str) -> Image:
        for beginning, image in self._images.items():
            if name.startswith(beginning):
                return image
        raise NotYet(f"nothing stands for the image {name}")

    def _environment(self, spec: Object, image: Image) -> Iterator[tuple[str, str]]:
        server = self._api.objects["services"]["default", "kubernetes"]["spec"]
        yield from image.environment.items()
        yield "HOSTNAME", self._object["metadata"]["name"]
        yield "KUBERNETES_SERVICE_HOST", server["clusterIP"]
        yield "KUBERNETES_SERVICE_PORT", str(server["ports"][0]["port"])
        self._object["status"]["podIP"] = self._network.address
        known: dict[str, str] = {}
        for each in spec.get("env", ()):
            source = each.get("valueFrom", {})
            if "fieldRef" in source:
                value = field(self._object, source["fieldRef"])
            elif source:
                kind = "secrets" if "secretKeyRef" in source else "configmaps"
                of = source.get("secretKeyRef") or source["configMapKeyRef"]
                value = keys_of(self._api, kind, self._object["metadata"]["namespace"], of["name"])[of["key"]].decode()
            else:
                value = expand(each.get("value", ""), known)
            known[each["name"]] = value
        yield from known.items()

    async def _stop_when_it_fails(self, each: Container, probes: Probes) -> None:
        why = await probes.failed()
        print(f"{self._object['metadata']['name']}/{each.name}: {why}", flush=True)
        await each.stop(self._object["spec"].get("terminationGracePeriodSeconds", 30))

    async def _wait(self, each: Container, reason: str, message: str, seconds: float) -> None:
        said = {"waiting": {"reason": reason, "message": message}}
        if each.state != said:
            each.state = said
            await self._report()
        await asyncio.sleep(seconds)

    async def _report(self) -> None:
        async with self._reporting:
            statuses = [self._status(each) for each in self._containers]
            up = self._phase == "Running" and not self._ending and all(status["ready"] for status in statuses)
            conditions = {"Initialized": True, "ContainersReady": up, "Ready": up}
            status = {
                "phase": self._phase,
                "startTime": self._since,
                "hostIP": NODE_ADDRESS,
                "podIP": self._network.address,
                "podIPs": [{"ip": self._network.address}],
                "conditions": [{"type": kind, "status": str(held)} for kind, held in conditions.items()],
                "containerStatuses": statuses,
            }
            about = {"uid": self._object["metadata"]["uid"]}
            await self._tell("PATCH", "/status", {"metadata": about, "status": status}, MERGE_LISTS)

    def _status(self, each: Container) -> Object:
        probes, image = self._probes.get(each.name), each.spec["image"]
        said: Object = {"name": each.name, "image": image, "imageID": image, "restartCount": each.restarts}
        said |= {"started": probes is not None and probes.started, "ready": probes is not None and probes.ready}
        return said | {"state": each.state, "lastState": each.last}

    async def _tell(self, method: str, part: str, body: Any, kind: str = "application/json") -> None:
        of = self._object["metadata"]
        try:
            await self._api.call(method, f"/api/v1/namespaces/{of['namespace']}/pods/{of['name']}{part}", body, kind)
        except Refused as error:
            if error.status not in (404, 409) and "metadata.uid" not in str(error):
                raise  # else it is gone, or another one has its name


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
