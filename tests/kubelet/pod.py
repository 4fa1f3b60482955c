"""One pod: its network, its containers from start to end, and its status."""

from __future__ import annotations

import asyncio
import functools
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kubelet.api import MERGE_LISTS, Api, Object, Refused
from kubelet.container import Container, Image, Mount
from kubelet.environment import environment_of
from kubelet.network import Network
from kubelet.probes import Probes
from kubelet.services import hosts_of
from kubelet.volumes import NotYet, Volumes

BACK_OFF_SECONDS: Final = (0.5, 10.0)
"""Before a container is started again: at first and at most. A kubelet waits for 10 s at first."""


class Watched:
    """A container and what its status says."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.probes: Probes | None = None
        self.restarts = 0
        self.state: Object = {"waiting": {"reason": "PodInitializing"}}
        self.last: Object = {}

    @property
    def ready(self) -> bool:
        return self.probes is not None and self.probes.ready

    def status(self) -> Object:
        image = self.container.spec["image"]
        said: Object = {"name": self.container.name, "image": image, "imageID": image, "state": self.state}
        started = self.probes is not None and self.probes.started
        return said | {"lastState": self.last, "restartCount": self.restarts, "ready": self.ready, "started": started}


class Pod:
    """``run`` it in a task; ``end`` it when it is deleted."""

    def __init__(self, api: Api, pod: Object, images: dict[str, Image], network: Network, directory: Path) -> None:
        self.api, self.object, self._network, self._directory = api, pod, network, directory
        self.uid: str = pod["metadata"]["uid"]
        self._images = images
        self._names = directory / "names"
        self._volumes = Volumes(api, pod, directory / "volumes")
        self._init = [self._watched(spec) for spec in pod["spec"].get("initContainers", ())]
        self._main = [self._watched(spec) for spec in pod["spec"]["containers"]]
        self._phase, self._since = "Pending", _now()
        self._ending = False
        self._reporting = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    def refresh(self) -> None:
        """Bring its files up to date with the objects that they come from."""
        self._volumes.refresh()
        self._write_hosts()

    async def end(self, grace_seconds: float) -> None:
        """Stop what runs, say so, and let the API server forget the pod."""
        self._ending = True
        everything = [*self._init, *self._main]
        for each in everything:
            hook = each.container.spec.get("lifecycle", {}).get("preStop", {})
            if grace_seconds and "sleep" in hook:
                await asyncio.sleep(hook["sleep"]["seconds"])
            elif grace_seconds and "exec" in hook and each.state.get("running"):
                await each.container.run_inside(hook["exec"]["command"], grace_seconds)
        await asyncio.gather(*(each.container.stop(grace_seconds) for each in everything))
        if self._running is not None:
            await asyncio.wait([self._running], timeout=5)
            self._running.cancel()
        await self._report()
        await self._network.remove()
        shutil.rmtree(self._directory / "volumes", ignore_errors=True)
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        await self._tell("DELETE", "", gone)

    async def _run(self) -> None:
        await self._network.add()
        self._write_hosts()
        while True:
            try:
                self.object["status"]["podIP"] = self._network.address
                await self._volumes.prepare()
                for each in [*self._init, *self._main]:
                    environment_of(self.api, self.object, each.container.spec, self._image(each.container.spec).environment)
                break
            except (NotYet, Refused) as error:
                await self._wait(self._init or self._main, "ContainerCreating", str(error))
        policy = self.object["spec"].get("restartPolicy", "Always")
        for each in self._init:
            status = await self._keep(each, "Never" if policy == "Never" else "OnFailure")
            if status != 0 or self._ending:
                self._phase = "Failed"
                return await self._report()
        self._phase = "Running"
        statuses = await asyncio.gather(*(self._keep(each, policy) for each in self._main))
        self._phase = "Failed" if any(statuses) else "Succeeded"
        return await self._report()

    async def _keep(self, each: Watched, policy: str) -> int:
        """Run a container again and again, as the policy says; its last status."""
        pause = BACK_OFF_SECONDS[0]
        while True:
            status = await self._run_once(each)
            if self._ending or policy == "Never" or (policy == "OnFailure" and status == 0):
                return status
            each.last, each.restarts = each.state, each.restarts + 1
            await self._wait([each], "CrashLoopBackOff", f"it ended with status {status}", pause)
            pause = min(pause * 2, BACK_OFF_SECONDS[1])

    async def _run_once(self, each: Watched) -> int:
        container = each.container
        image = self._image(container.spec)
        environment = environment_of(self.api, self.object, container.spec, image.environment)
        each.probes = Probes(container, self._network.address, self._report)
        started = _now()
        try:
            await container.start(image, environment, [self._mount(m) for m in container.spec.get("volumeMounts", ())])
        except ValueError as error:
            await self._wait([each], "CreateContainerConfigError", str(error))
            return 1
        each.state = {"running": {"startedAt": started}}
        await self._report()
        probing = asyncio.create_task(self._restart_when_it_fails(each))
        status = await container.ended()
        probing.cancel()
        each.probes = None
        ended: Object = {"exitCode": status, "startedAt": started, "finishedAt": _now()}
        each.state = {"terminated": ended | {"reason": "Completed" if status == 0 else "Error"}}
        await self._report()
        return status

    async def _restart_when_it_fails(self, each: Watched) -> None:
        assert each.probes is not None
        why = await each.probes.failed()
        print(f"{self.object['metadata']['name']}/{each.container.name}: {why}", flush=True)
        await each.container.stop(self.object["spec"].get("terminationGracePeriodSeconds", 30))

    async def _wait(self, which: list[Watched], reason: str, message: str, seconds: float = 0.3) -> None:
        said = {"waiting": {"reason": reason, "message": message}}
        if any(each.state != said for each in which):
            for each in which:
                each.state = said
            await self._report()
        await asyncio.sleep(seconds)

    def _watched(self, spec: Object) -> Watched:
        return Watched(Container(self.object, spec, self._directory, self._network.name, self._names))

    def _image(self, spec: Object) -> Image:
        for beginning, image in self._images.items():
            if spec["image"].startswith(beginning):
                return image
        raise NotYet(f"nothing stands for the image {spec['image']}")

    def _mount(self, asked: Object) -> Mount:
        source = self._volumes.paths[asked["name"]]
        if "subPath" in asked:
            source /= asked["subPath"]
            if not source.exists():
                source.mkdir(parents=True)
        return Mount(source.resolve(), asked["mountPath"], asked.get("readOnly", False))

    def _write_hosts(self) -> None:
        text = hosts_of(self.api, self.object["metadata"]["namespace"])
        text += f"{self._network.address} {self.object['metadata']['name']}\n"
        self._names.mkdir(parents=True, exist_ok=True)
        if not (self._names / "hosts").exists() or (self._names / "hosts").read_text() != text:
            (self._names / "new").write_text(text)
            (self._names / "new").replace(self._names / "hosts")

    async def _report(self) -> None:
        async with self._reporting:
            initialized = self._phase != "Pending"
            ready = self._phase == "Running" and not self._ending and all(each.ready for each in self._main)
            conditions = {"Initialized": initialized, "ContainersReady": ready, "Ready": ready}
            status = {
                "phase": self._phase,
                "startTime": self._since,
                "hostIP": self._network.host,
                "podIP": self._network.address,
                "podIPs": [{"ip": self._network.address}],
                "conditions": [{"type": kind, "status": str(held)} for kind, held in conditions.items()],
                "initContainerStatuses": [each.status() for each in self._init],
                "containerStatuses": [each.status() for each in self._main],
            }
            await self._tell("PATCH", "/status", {"metadata": {"uid": self.uid}, "status": status}, MERGE_LISTS)

    async def _tell(self, method: str, part: str, body: Any, kind: str = "application/json") -> None:
        where = self.object["metadata"]
        try:
            await self.api.call(method, f"/api/v1/namespaces/{where['namespace']}/pods/{where['name']}{part}", body, kind)
        except Refused as error:
            if error.status not in (404, 409):  # it is gone, or another one has its name
                raise


_now = functools.partial(lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
