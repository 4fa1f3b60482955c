"""Volumes of a pod, each a directory of this machine that is bound into its containers."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from kubelet.api import Api, Object

Files = dict[str, tuple[bytes, int]]
"""Files of a volume: content and mode by path."""


class NotYet(Exception):
    """Something that the pod needs is not there yet; the pod's start is tried again."""


class Volumes:
    """Volumes of one pod; ``paths`` has their directories by name.

    Files of ConfigMaps and Secrets are written again when these change, as a kubelet does it: ``..data`` is a link to
    the newest directory, and is exchanged in one step.
    """

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        self._api, self._pod, self._directory = api, pod, directory
        self._namespace: str = pod["metadata"]["namespace"]
        self._group: int | None = pod["spec"].get("securityContext", {}).get("fsGroup")
        self._written: dict[str, Files] = {}
        self._tokens: dict[str, bytes] = {}
        self.paths: dict[str, Path] = {}

    async def prepare(self) -> None:
        """Make all volumes that are missing. Raise :class:`NotYet` if something that one needs is not there."""
        for volume in self._pod["spec"].get("volumes", ()):
            path = self.paths[volume["name"]] = self._directory / volume["name"]
            if claim := volume.get("persistentVolumeClaim"):
                path = self.paths[volume["name"]] = await self._claimed(claim["claimName"])
            elif "emptyDir" not in volume:
                await self._fetch_tokens(volume)
                self._write(path, self._files(volume))
                continue
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, 0, self._group or 0)
            path.chmod(0o777 if self._group is None else 0o2775)

    def refresh(self) -> None:
        """Write files of ConfigMaps, Secrets and fields again, as the API's objects are now."""
        for volume in self._pod["spec"].get("volumes", ()):
            if volume["name"] in self._written:
                with contextlib.suppress(NotYet):  # an object was removed: its files stay
                    self._write(self.paths[volume["name"]], self._files(volume))

    async def _claimed(self, name: str) -> Path:
        claim = await self._api.call("GET", f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{name}")
        if claim["status"].get("phase") != "Bound":
            raise NotYet(f"the claim {name} is not bound")
        bound = await self._api.call("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return Path(bound["spec"]["hostPath"]["path"])

    async def _fetch_tokens(self, volume: Object) -> None:
        account = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{self._pod['spec'].get('serviceAccountName')}"
        for source in volume.get("projected", {}).get("sources", ()):
            asked = source.get("serviceAccountToken")
            if asked is not None and asked["path"] not in self._tokens:
                spec = {"expirationSeconds": asked["expirationSeconds"], "audiences": []}
                answer = await self._api.call("POST", f"{account}/token", {"spec": spec})
                self._tokens[asked["path"]] = answer["status"]["token"].encode()

    def _files(self, volume: Object) -> Files:
        (kind,) = volume.keys() - {"name"}
        sources: list[Object] = volume[kind].get("sources", [volume])
        mode = volume[kind].get("defaultMode", 0)
        return {path: file for source in sources for path, file in self._of_source(source, mode).items()}

    def _of_source(self, source: Object, mode: int) -> Files:
        match source:
            case {"serviceAccountToken": of}:
                return {of["path"]: (self._tokens[of["path"]], mode)}
            case {"downwardAPI": of}:
                return {item["path"]: (field(self._pod, item["fieldRef"]).encode(), mode) for item in of["items"]}
            case {"configMap": of} | {"secret": of}:
                kind = "secrets" if "secret" in source else "configmaps"
                held = keys_of(self._api, kind, self._namespace, of)
            case other:
                raise NotYet(f"this tool does not know volumes such as {other}")
        wanted = of.get("items") or [{"key": key, "path": key} for key in held]
        if (absent := {item["key"] for item in wanted} - held.keys()) and not of.get("optional"):
            raise NotYet(f"{of} has no {absent}")
        return {each["path"]: (held[each["key"]], each.get("mode", mode)) for each in wanted if each["key"] in held}

    def _write(self, root: Path, files: Files) -> None:
        if self._written.get(root.name) == files:
            return
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="..", dir=root))
        made.chmod(0o755)
        for path, (content, mode) in files.items():
            (made / path).write_bytes(content)
            (made / path).chmod(mode if self._group is None else mode | 0o440)
            os.chown(made / path, 0, self._group or 0)
            if not (root / path).is_symlink():
                (root / path).symlink_to(Path("..data", path))
        (root / "..data_tmp").symlink_to(made.name)
        (root / "..data_tmp").replace(root / "..data")
        for path in self._written.get(root.name, {}).keys() - files.keys():
            (root / path).unlink()
        self._written[root.name] = files


def keys_of(api: Api, kind: str, namespace: str, of: Object) -> dict[str, bytes]:
    """Return the decoded values by key of the ConfigMap or Secret that ``of`` names.

    Raise :class:`NotYet` if it does not exist, unless it is optional.
    """
    name = of.get("secretName") or of["name"]
    if (found := api.objects[kind].get((namespace, name))) is None and not of.get("optional"):
        raise NotYet(f"{kind} {name} does not exist")
    held = (found or {}).get("data") or {}
    return {key: base64.b64decode(value) if kind == "secrets" else value.encode() for key, value in held.items()}


def field(pod: Object, reference: Object) -> str:
    """Return the value of a pod's field that a ``fieldRef`` names; empty if it is no text."""
    found: Any = pod
    for part in reference["fieldPath"].split("."):
        found = found.get(part, {})
    return found if isinstance(found, str) else ""
