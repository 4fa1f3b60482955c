"""The volumes of a pod, each a directory of this machine: what is to be bound into its containers."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kubelet.api import Api, Object


class NotYet(Exception):
    """Something that the pod needs is not there; it starts when it is."""


class Volumes:
    """``paths`` by the volume's name. What comes from objects is written again when they change, as a kubelet does it:
    ``..data`` is a link to the newest directory, and is exchanged in one step."""

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        self._api, self._pod, self._directory = api, pod, directory
        self._namespace: str = pod["metadata"]["namespace"]
        self._group: int | None = pod["spec"].get("securityContext", {}).get("fsGroup")
        self._written: dict[str, dict[str, tuple[bytes, int]]] = {}
        self._tokens: dict[str, str] = {}
        self.paths: dict[str, Path] = {}

    async def prepare(self) -> None:
        """Make those that are missing; raises :class:`NotYet`."""
        for volume in self._pod["spec"].get("volumes", ()):
            name = volume["name"]
            if "persistentVolumeClaim" in volume:
                self.paths[name] = await self._claimed(volume["persistentVolumeClaim"]["claimName"])
            elif "emptyDir" in volume:
                self.paths[name] = self._directory / name
            else:
                await self._fetch_tokens(volume)
                self._write(name, self._files(volume))
                continue
            self.paths[name].mkdir(parents=True, exist_ok=True)
            if self._group is None:
                self.paths[name].chmod(0o777)
            else:
                os.chown(self.paths[name], 0, self._group)
                self.paths[name].chmod(0o2775)

    def refresh(self) -> None:
        """Write again what objects say now."""
        for volume in self._pod["spec"].get("volumes", ()):
            if volume["name"] in self._written:
                try:
                    self._write(volume["name"], self._files(volume))
                except NotYet:  # an object was removed: its files stay
                    continue

    async def _claimed(self, claim_name: str) -> Path:
        claim = self._api.get("claims", self._namespace, claim_name)
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise NotYet(f"the claim {claim_name} is not bound")
        bound = await self._api.call("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return Path(bound["spec"]["hostPath"]["path"])

    async def _fetch_tokens(self, volume: Object) -> None:
        for source in volume.get("projected", {}).get("sources", ()):
            asked = source.get("serviceAccountToken")
            if asked is None or asked["path"] in self._tokens:
                continue
            account = self._pod["spec"].get("serviceAccountName", "default")
            bound = {"kind": "Pod", "apiVersion": "v1"} | {key: self._pod["metadata"][key] for key in ("name", "uid")}
            spec = {"expirationSeconds": asked.get("expirationSeconds", 3600), "boundObjectRef": bound}
            spec["audiences"] = [asked["audience"]] if "audience" in asked else []
            answer = await self._api.call(
                "POST",
                f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            )
            self._tokens[asked["path"]] = answer["status"]["token"]

    def _files(self, volume: Object) -> dict[str, tuple[bytes, int]]:
        """Content and mode of each file."""
        for kind in ("configMap", "secret", "downwardAPI", "projected"):
            if kind in volume:
                mode = volume[kind].get("defaultMode", 0o644)
                sources = volume[kind]["sources"] if kind == "projected" else [{kind: volume[kind]}]
                return {path: file for source in sources for path, file in self._of_source(source, mode).items()}
        raise NotYet(f"the volume {volume['name']} is of a kind that this tool does not know: {sorted(volume)}")

    def _of_source(self, source: Object, mode: int) -> dict[str, tuple[bytes, int]]:
        if "serviceAccountToken" in source:
            path = source["serviceAccountToken"]["path"]
            return {path: (self._tokens[path].encode(), mode)}
        if "downwardAPI" in source:
            items = source["downwardAPI"]["items"]
            return {i["path"]: (field(self._pod, i["fieldRef"]["fieldPath"]).encode(), mode) for i in items}
        kind, of = ("configmaps", source["configMap"]) if "configMap" in source else ("secrets", source["secret"])
        held = keys_of(self._api, kind, self._namespace, of.get("secretName") or of.get("name"), of.get("optional"))
        if "items" not in of:
            return {key: (value, mode) for key, value in held.items()}
        if absent := [i["key"] for i in of["items"] if i["key"] not in held and not of.get("optional")]:
            raise NotYet(f"{kind} {of} has no {absent}")
        return {i["path"]: (held[i["key"]], i.get("mode", mode)) for i in of["items"] if i["key"] in held}

    def _write(self, name: str, files: dict[str, tuple[bytes, int]]) -> None:
        root = self.paths[name] = self._directory / name
        if self._written.get(name) == files:
            return
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="..", dir=root))
        made.chmod(0o755)
        for path, (content, mode) in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_bytes(content)
            (made / path).chmod(mode if self._group is None else mode | 0o440)
            os.chown(made / path, 0, self._group or 0)
            top = root / Path(path).parts[0]
            if not top.is_symlink():
                top.symlink_to(Path("..data", top.name))
        old = (root / "..data").resolve()
        (root / "..data_tmp").symlink_to(made.name)
        (root / "..data_tmp").replace(root / "..data")
        for top in root.iterdir():
            if top.is_symlink() and not top.exists():
                top.unlink()
        if old.name != "..data":
            shutil.rmtree(old)
        self._written[name] = files


def keys_of(api: Api, kind: str, namespace: str, name: str, optional: bool | None = False) -> dict[str, bytes]:
    """What a ConfigMap or a Secret holds; raises :class:`NotYet`."""
    found = api.get(kind, namespace, name)
    if found is None and not optional:
        raise NotYet(f"{kind} {name} does not exist")
    plain = {} if kind == "secrets" else (found or {}).get("data") or {}
    coded = (found or {}).get("data" if kind == "secrets" else "binaryData") or {}
    return {k: v.encode() for k, v in plain.items()} | {k: base64.b64decode(v) for k, v in coded.items()}


def field(pod: Object, path: str) -> str:
    """What a ``fieldRef`` asks for."""
    section, _, key = path.partition("['")
    if key:
        return pod["metadata"].get(section.split(".")[1], {}).get(key.removesuffix("']"), "")
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, {})
    return found if isinstance(found, str) else ""
