"""Pod of the tests' node: runs its init containers, then its container from start to end, and reports its status."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubelet.api import MERGE_LISTS, Api, Object, Refused
from kubelet.container import Container, expand
from kubelet.network import NAMES, Network, Place
from kubelet.probes import Probes
from kubelet.services import hosts_of
from kubelet.volumes import NotYet, Volumes, field, keys_of


class Pod:
    """Pod that runs in ``task`` until :meth:`end`. ``pod`` is the pod's object in the API.

    ``settings`` are those of ``node.json``.
    """

    def __init__(self, api: Api, pod: Object, settings: Object, directory: Path) -> None:
        self._api, self._object, self._image, self._directory = api, pod, settings["image"], directory
        self._network = Network(Place(settings["number"]))
        self._aliases: list[Object] = pod["spec"].get("hostAliases", [])
        aliased = {name for each in self._aliases for name in each["hostnames"]}  # DNS is not asked for these
        self._known = {name: address for name, address in NAMES.items() if name not in aliased}
        self._names = directory / "names"
        self._volumes = Volumes(api, pod, directory / "volumes")
        specs = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        self._containers = [Container(pod, each, directory, self._network.name, self._names) for each in specs]
        self._container = self._containers[-1]
        self._probes: Probes | None = None
        """Probes of the container while it runs."""
        self._phase, self._restarts = "Pending", 0
        self._state: Object = {"waiting": {"reason": "ContainerCreating"}}
        """State of the container, as a pod's status has it; ``_last`` is the state of the run before it."""
        self._last: Object = {}
        self._reporting = asyncio.Lock()
        self._deleted: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: api.changed.set())

    def refresh(self) -> None:
        """Write the pod's volumes and ``hosts`` again from the API's objects. Raise the error if its task failed."""
        if self.task.done():
            self.task.result()
        elif not self._deleted.done():
            self._volumes.refresh()
            text = hosts_of(self._api, self._object["metadata"]["namespace"])
            text += f"{self._network.address} {self._object['metadata']['name']}\n"
            text += "".join(f"{each['ip']} {' '.join(each['hostnames'])}\n" for each in self._aliases)
            text += "".join(f"{address} {name}\n" for name, address in self._known.items())
            self._names.mkdir(parents=True, exist_ok=True)
            (self._names / "new").write_text(text)
            (self._names / "new").replace(self._names / "hosts")

    def end(self, grace_seconds: float) -> None:
        """Have the pod stopped, with ``grace_seconds`` between SIGTERM and SIGKILL, and then deleted in the API."""
        if not self._deleted.done():
            self._deleted.set_result(grace_seconds)

    async def _run(self) -> None:
        await asyncio.to_thread(self._network.add)
        self.refresh()
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._keep())
            grace_seconds = await self._deleted
            await self._report()  # it is not ready any more
            await asyncio.gather(*(each.stop(grace_seconds) for each in self._containers))
            await asyncio.wait([keeping], timeout=5)
            keeping.cancel()
            await asyncio.gather(*(each.stop(0) for each in self._containers))  # one that was just started
        await asyncio.to_thread(self._network.remove)
        shutil.rmtree(self._directory / "volumes", ignore_errors=True)
        uid = self._object["metadata"]["uid"]
        await self._tell("DELETE", "", {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    async def _keep(self) -> None:
        """Run init containers until each succeeds, then the container, again as the restart policy says."""
        for each in self._containers[:-1]:
            while not self._deleted.done() and (status := await self._run_before(each)):
                await self._wait("PodInitializing", f"{each.spec['name']} ended with status {status}", 1.0)
        status, again = 0, True
        while again and not self._deleted.done():
            status = await self._run_once()
            again = self._object["spec"]["restartPolicy"] in ("Always", "OnFailure" if status else "")
            if again:
                self._last, self._restarts = self._state, self._restarts + 1
                await self._wait("CrashLoopBackOff", f"it ended with status {status}", 1.0)
        self._phase = "Failed" if status else "Succeeded"
        await self._report()

    async def _run_before(self, container: Container) -> int:
        await self._start(container)
        return await container.ended()

    async def _run_once(self) -> int:
        await self._start(self._container)
        self._probes = Probes(self._container, self._network.address, self._report)
        self._state, self._phase = {"running": {"startedAt": _now()}}, "Running"
        await self._report()
        async with asyncio.TaskGroup() as group:  # a fault of this tool ends it, instead of the probes alone
            probing = group.create_task(self._stop_when_it_fails(self._probes))
            status = await self._container.ended()
            probing.cancel()
        self._probes = None
        ended = {**self._state["running"], "exitCode": status, "finishedAt": _now()}
        self._state = {"terminated": {**ended, "reason": "Error" if status else "Completed"}}
        await self._report()
        return status

    async def _start(self, container: Container) -> None:
        while True:
            try:
                await self._volumes.prepare()
                mounts = [(Path(folder), folder, True) for folder in self._image["folders"]]
                for each in container.spec.get("volumeMounts", ()):
                    mounts.append((self._volumes.paths[each["name"]], each["mountPath"], each.get("readOnly", False)))
                return await container.start(dict(self._environment(container)), mounts)
            except (NotYet, Refused) as error:
                await self._wait("ContainerCreating", str(error), 0.3)

    def _environment(self, container: Container) -> Iterator[tuple[str, str]]:
        server = self._api.objects["services"]["default", "kubernetes"]["spec"]
        yield from self._image["environment"].items()
        yield "HOSTNAME", self._object["metadata"]["name"]
        yield "KUBERNETES_SERVICE_HOST", server["clusterIP"]
        yield "KUBERNETES_SERVICE_PORT", str(server["ports"][0]["port"])
        self._object["status"]["podIP"] = self._network.address
        known: dict[str, str] = {}
        for each in container.spec.get("env", ()):
            match each.get("valueFrom"):
                case None:
                    value = expand(each.get("value", ""), known)
                case {"fieldRef": reference}:
                    value = field(self._object, reference)
                case {"secretKeyRef": of}:
                    value = keys_of(self._api, "secrets", self._object["metadata"]["namespace"], of)[of["key"]].decode()
                case other:
                    raise NotYet(f"this tool does not know values such as {other}")
            known[each["name"]] = value
        yield from known.items()

    async def _stop_when_it_fails(self, probes: Probes) -> None:
        print(f"{self._object['metadata']['name']}: the {await probes.failed()} probe failed", flush=True)
        await self._container.stop(self._object["spec"]["terminationGracePeriodSeconds"])

    async def _wait(self, reason: str, message: str, seconds: float) -> None:
        said = {"waiting": {"reason": reason, "message": message}}
        if self._state != said:
            self._state = said
            await self._report()
        await asyncio.sleep(seconds)

    async def _report(self) -> None:
        async with self._reporting:
            up = self._probes is not None and self._probes.ready and not self._deleted.done()
            name, image = self._container.spec["name"], self._container.spec["image"]
            container = {"name": name, "image": image, "imageID": image, "restartCount": self._restarts}
            status = {
                "phase": self._phase,
                "podIP": self._network.address,
                "conditions": [{"type": "Ready", "status": str(up)}],
                "containerStatuses": [{**container, "ready": up, "state": self._state, "lastState": self._last}],
            }
            about = {"metadata": {"uid": self._object["metadata"]["uid"]}, "status": status}
            await self._tell("PATCH", "/status", about, MERGE_LISTS)

    async def _tell(self, method: str, part: str, body: Any, kind: str = "application/json") -> None:
        of = self._object["metadata"]
        try:
            await self._api.call(method, f"/api/v1/namespaces/{of['namespace']}/pods/{of['name']}{part}", body, kind)
        except Refused as error:
            if error.status != 404 and not error.of_another:
                raise  # else it is gone, or another one has its name


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
