"""One container: processes with namespaces of their own, a root of their own, and the user that the pod asks for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from peers.kubernetes.control_plane import keep_log

from kubelet.api import Object

_SETUP: Final = """\
set -eu
hostname {hostname}
mount --make-rprivate /
mount -t tmpfs -o mode=755,size=16m tmpfs {root}
cd {root}
mkdir -p dev etc proc sys tmp var run/names
for top in bin sbin lib lib32 lib64 usr; do
  if [ -L /$top ]; then cp -P /$top .; elif [ -d /$top ]; then mkdir $top; mount --bind -o ro /$top $top; fi
done
(cd /etc; cp -a ld.so.* ssl alternatives localtime {root}/etc; cp -a java-* {root}/etc 2>/dev/null || true)
echo 'hosts: files' >etc/nsswitch.conf
printf 'root:x:0:0::/:/bin/sh\\nimage:x:%s:%s::/:/bin/sh\\n' {user} {group} >etc/passwd
printf 'root:x:0:\\nimage:x:%s:\\n' {group} >etc/group
mount --bind -o ro {names} run/names # a folder, because its file is exchanged
ln -s /run/names/hosts etc/hosts
mount -t proc proc proc
mount --rbind -o ro /sys sys
mount -t tmpfs -o mode=755,size=64k tmpfs dev
mkdir -m 1777 dev/shm
mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd; ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
{mounts}
exec chroot . {command}
"""


@dataclass(frozen=True)
class Image:
    """What stands for an image beside this machine's ``/usr``: ``folders`` of it, at the same place."""

    folders: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Container:
    """``start`` it, wait until it has ``ended``; ``stop`` as kubelets do. It may be started again."""

    def __init__(self, pod: Object, spec: Object, directory: Path, network: str, names: Path) -> None:
        self.name: str = spec["name"]
        self.spec, self._hostname = spec, pod["metadata"]["name"]
        self._directory, self._network, self._names = directory / self.name, network, names
        self._security = pod["spec"].get("securityContext", {}) | spec.get("securityContext", {})
        self._process: asyncio.subprocess.Process | None = None
        self._init: int | None = None
        self.restarts = 0
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        """This and the next are written as a pod's status has them."""
        self.last: Object = {}

    async def start(self, image: Image, environment: dict[str, str], mounts: list[tuple[Path, str, bool]]) -> None:
        """``mounts`` are what, where, and whether it is read-only."""
        (self._directory / "root").mkdir(parents=True, exist_ok=True)
        self._as_user = self._credentials(environment)
        known = [expand(text, environment) for text in [*self.spec["command"], *self.spec.get("args", ())]]
        folders = [(Path(folder), folder, True) for folder in image.folders]
        # The first child of a program that was unshared is the new namespace's first process. A shell waits for it
        # itself, because `unshare --fork` does not tell that it was killed.
        unshared = ["unshare", "--mount", "--pid", "--ipc", "--uts", "sh", "-c", 'sh -c "$0"; exit $?']
        out, its_end = os.pipe()
        self._process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net=/run/netns/{self._network}", *unshared),
            self._script([*folders, *mounts], [*self._as_user, *known]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=its_end,
            stderr=its_end,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        os.close(its_end)
        keep_log(os.fdopen(out, "rb"), self._directory / "log")
        self._init = None
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            while self._init is None and self._process.returncode is None:
                await asyncio.sleep(0.005)
                self._init = next((child.pid for child in psutil.Process(self._process.pid).children()), None)
        (self._directory / "pid").write_text(str(self._init))

    async def ended(self) -> int:
        """Its status, when it has one; as a shell gives it."""
        assert self._process is not None
        status = await self._process.wait()
        (self._directory / "status").write_text(str(status))
        return status

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to its first process; SIGKILL, which ends all of its processes, if that takes longer."""
        if self._process is None or self._init is None:
            return
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
            if self._process.returncode is None and seconds != 0:
                with contextlib.suppress(ProcessLookupError, TimeoutError):
                    os.kill(self._init, number)
                    await asyncio.wait_for(self._process.wait(), seconds)

    async def run_inside(self, command: list[str], seconds: float) -> bool:
        """Whether a command succeeds in the container in time."""
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
            return False

    def _credentials(self, environment: dict[str, str]) -> list[str]:
        groups = str(self._security.get("fsGroup", ""))
        command = ["setpriv", f"--reuid={self._user}", f"--regid={self._group}"]
        command += [f"--groups={groups}" if groups else "--clear-groups"]
        if self._security.get("allowPrivilegeEscalation") is False:
            command.append("--no-new-privs")
        if "ALL" in self._security.get("capabilities", {}).get("drop", ()):
            command += ["--bounding-set=-all", "--inh-caps=-all"]
        return [*command, "env", "-i", *(f"{name}={value}" for name, value in environment.items())]

    @property
    def _user(self) -> int:
        user: int = self._security.get("runAsUser", 0)
        assert user or not self._security.get("runAsNonRoot"), "runAsNonRoot needs runAsUser: images are not imitated"
        return user

    @property
    def _group(self) -> int:
        return int(self._security.get("runAsGroup", 0))

    def _script(self, mounts: list[tuple[Path, str, bool]], command: list[str]) -> str:
        lines, locks = [], []
        for source, target, read_only in sorted(mounts, key=lambda mount: mount[1]):
            place = shlex.quote("." + target)
            lines.append(f"mkdir -p {place}; mount --rbind {shlex.quote(str(source))} {place}")
            locks += [f"mount -o remount,bind,ro {place}"] if read_only else []
        locks += ["mount -o remount,ro ."] if self._security.get("readOnlyRootFilesystem") else []
        return _SETUP.format(
            hostname=shlex.quote(self._hostname),
            root=shlex.quote(str(self._directory / "root")),
            names=shlex.quote(str(self._names)),
            user=self._user,
            group=self._group,
            mounts="\n".join([*lines, *locks]),  # locked last, because a volume may be mounted within another one
            command=shlex.join(command),
        )


def expand(text: str, environment: dict[str, str]) -> str:
    """Put values in the places of ``$(NAME)``."""
    for name, value in environment.items():
        text = text.replace(f"$({name})", value)
    return text
