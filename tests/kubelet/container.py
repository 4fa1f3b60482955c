"""One container: processes with namespaces of their own, a root of their own, and the user that the pod asks for."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from peers.kubernetes.control_plane import keep_log

from kubelet.api import Object

NOBODY_KNOWN: Final = 10_001
"""The user of an image that names one without a number."""
_ETC: Final = "ld.so.cache ld.so.conf ld.so.conf.d nsswitch.conf ssl alternatives localtime mime.types".split()
_SETUP: Final = """\
set -eu
hostname {hostname}
mount --make-rprivate /
mount -t tmpfs -o mode=755,size=16m tmpfs {root}
cd {root}
mkdir -p dev etc proc sys tmp var run
chmod 1777 tmp
for top in bin sbin lib lib32 lib64 usr; do
  if [ -L /$top ]; then cp -P /$top .; elif [ -d /$top ]; then mkdir $top; mount --bind -o ro /$top $top; fi
done
for kept in {etc}; do if [ -e /etc/$kept ]; then cp -a /etc/$kept etc/; fi; done
cp -a /etc/java-* etc/ 2>/dev/null || true
printf 'root:x:0:0::/:/bin/sh\\n%s:x:%s:%s::/:/bin/sh\\n' {name} {user} {group} >etc/passwd
printf 'root:x:0:\\n%s:x:%s:\\n' {name} {group} >etc/group
mkdir run/names  # a folder, since its file is exchanged
mount --bind -o ro {names} run/names
ln -s /run/names/hosts etc/hosts
mount -t proc proc proc
mount --rbind -o ro /sys sys
mount -t tmpfs -o mode=755,size=64k tmpfs dev
mkdir -m 1777 dev/shm
mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
bound() {{ if [ -d "$1" ]; then mkdir -p ".$2"; else mkdir -p "$(dirname ".$2")"; touch ".$2"; fi; mount --rbind "$1" ".$2"; }}
{mounts}
{read_only}
exec chroot . {command}
"""


@dataclass(frozen=True)
class Image:
    """What stands for an image: this machine's /usr, and ``folders`` of it (a virtual environment), read-only."""

    folders: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = "root"
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool


class Container:
    """``start`` it, wait until it has ``ended``; ``stop`` as kubelets do. It may be started again."""

    def __init__(self, pod: Object, spec: Object, directory: Path, network: str, names: Path) -> None:
        self.name: str = spec["name"]
        self.spec, self._pod = spec, pod
        self._directory, self._network, self._names = directory / self.name, network, names
        self._process: asyncio.subprocess.Process | None = None
        self._init: int | None = None
        self._security = pod["spec"].get("securityContext", {}) | spec.get("securityContext", {})

    async def start(self, image: Image, environment: dict[str, str], mounts: list[Mount]) -> None:
        """Raises ValueError where the pod asks for what its image cannot give."""
        (self._directory / "root").mkdir(parents=True, exist_ok=True)
        self._image = image
        known = partial(expand, environment=environment)
        command = [*map(known, self.spec.get("command", self._image.entrypoint))]
        no_arguments = () if "command" in self.spec else self._image.command
        self._command = [*command, *map(known, self.spec.get("args", no_arguments))]
        self._as_user = self._credentials(environment)
        script = self._script(mounts, [*self._as_user, *self._command])
        out, its_end = os.pipe()
        namespaces = ["--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *("nsenter", f"--net=/run/netns/{self._network}", "unshare", *namespaces, "sh", "-c", script),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_end,
                stderr=its_end,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        finally:
            os.close(its_end)
        keep_log(os.fdopen(out, "rb"), self._directory / "log")
        self._init = await self._find_init()

    async def ended(self) -> int:
        """Its status, when it has one; as a shell gives it."""
        assert self._process is not None
        status = await self._process.wait()
        return status if status >= 0 else 128 - status

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to its first process; SIGKILL, which ends all of its processes, if that takes longer."""
        if self._process is None or self._init is None or self._process.returncode is not None:
            return
        _send(self._init, signal.SIGTERM if grace_seconds > 0 else signal.SIGKILL)
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds if grace_seconds > 0 else None)
        except TimeoutError:
            _send(self._init, signal.SIGKILL)
            await self._process.wait()

    async def run_inside(self, command: list[str], seconds: float) -> bool:
        """Whether a command succeeds in the container in time: probes, and what precedes its end."""
        if self._init is None:
            return False
        inside = ["nsenter", f"--target={self._init}", "--mount", "--net", "--pid", "--ipc", "--uts"]
        process = await asyncio.create_subprocess_exec(
            *(*inside, "chroot", f"/proc/{self._init}/root", *self._as_user, *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            return await asyncio.wait_for(process.wait(), seconds) == 0
        except TimeoutError:
            process.kill()
            await process.wait()
            return False

    async def _find_init(self) -> int | None:
        assert self._process is not None
        while self._process.returncode is None:
            try:
                if children := psutil.Process(self._process.pid).children():
                    return children[0].pid
            except psutil.NoSuchProcess:
                break
            await asyncio.sleep(0.005)
        return None

    def _user(self) -> tuple[int, int]:
        named = self._image.user
        of_image = int(named) if named.isdigit() else 0 if named == "root" else NOBODY_KNOWN
        user = self._security.get("runAsUser", of_image)
        if user == 0 and self._security.get("runAsNonRoot"):
            raise ValueError("runAsNonRoot is set, and the image's user is root")
        return user, self._security.get("runAsGroup", user if user == NOBODY_KNOWN else 0)

    def _credentials(self, environment: dict[str, str]) -> list[str]:
        user, group = self._user()
        groups = [*self._security.get("supplementalGroups", ())]
        groups += [self._security["fsGroup"]] if "fsGroup" in self._security else []
        command = ["setpriv", f"--reuid={user}", f"--regid={group}"]
        command += [f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"]
        if self._security.get("allowPrivilegeEscalation") is False:
            command += ["--no-new-privs"]
        if "ALL" in self._security.get("capabilities", {}).get("drop", ()):
            command += ["--bounding-set=-all", "--inh-caps=-all"]
        workdir = self.spec.get("workingDir", self._image.workdir)
        return [*command, "env", "-i", "-C", workdir, *(f"{name}={value}" for name, value in environment.items())]

    def _script(self, mounts: list[Mount], command: list[str]) -> str:
        folders = [Mount(Path(folder), folder, True) for folder in self._image.folders]
        ordered = sorted([*folders, *mounts], key=lambda mount: mount.target)
        lines = [f"bound {shlex.quote(str(m.source))} {shlex.quote(m.target)}" for m in ordered]
        # Last, because a volume may be mounted within another one.
        lines += [f"mount -o remount,bind,ro {shlex.quote('.' + m.target)}" for m in ordered if m.read_only]
        read_only = self._security.get("readOnlyRootFilesystem")
        user, group = self._user()
        return _SETUP.format(
            hostname=shlex.quote(self._pod["metadata"]["name"]),
            root=shlex.quote(str(self._directory / "root")),
            etc=" ".join(_ETC),
            names=shlex.quote(str(self._names)),
            name=self._image.user if not self._image.user.isdigit() and user else f"user{user}",
            user=user,
            group=group,
            mounts="\n".join(lines),
            read_only="mount -o remount,ro ." if read_only else "",
            command=shlex.join(command),
        )


def expand(text: str, environment: dict[str, str]) -> str:
    """Put the value in the place of ``$(NAME)``; ``$$`` is one dollar, and unknown names stay."""
    one = lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0])  # noqa: E731
    return re.sub(r"\$\$|\$\(([^()]+)\)", one, text)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just ended
        return
